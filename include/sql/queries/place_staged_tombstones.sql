-- In the day whose generation has the board; else in that of its row.
UPDATE stage_detail s
   SET day = COALESCE(
       (SELECT date '1970-01-01' + shown.number
          FROM unnest(%(keys)s::bigint[], %(days)s::int[]) AS shown (key, number) WHERE shown.key = s.{{key}}),
       (SELECT l.day FROM board_detail_live l WHERE l.{{key}} = s.{{key}}),
       (SELECT c.day FROM board_detail_covered c WHERE c.{{key}} = s.{{key}}
         ORDER BY c.{{version}} DESC, c.board_offset DESC LIMIT 1))
 WHERE s.deleted AND s.day IS NULL
RETURNING s.day - date '1970-01-01'
