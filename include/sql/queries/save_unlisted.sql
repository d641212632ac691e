-- Of a day that was not shown all rows are new: they are counted, and not listed one by one. Boards that are compared
-- one by one are not counted here.
UPDATE generation g
   SET unlisted_corrections = (
       SELECT jsonb_object_agg(c.class, c.count)
         FROM (SELECT CASE WHEN f.replayed THEN 'recovered_from_fallback' ELSE 'missing' END AS class, count(*)
                 FROM board_detail_final f
                WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
                  AND NOT EXISTS (SELECT 1 FROM changed_board b WHERE b.board_id = f.{{key}}) GROUP BY 1) c)
 WHERE g.id = %(generation_id)s
