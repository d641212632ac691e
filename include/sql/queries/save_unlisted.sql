-- All of its rows are new: they are counted, and not listed one by one.
UPDATE generation g
   SET unlisted_corrections = (
       SELECT jsonb_object_agg(c.class, c.count)
         FROM (SELECT CASE WHEN f.replayed THEN 'recovered_from_fallback' ELSE 'missing' END AS class, count(*)
                 FROM board_detail_final f WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s GROUP BY 1) c)
 WHERE g.id = %(generation_id)s
