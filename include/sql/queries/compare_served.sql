-- Boards with a record that was served since the comparison and may make the day read otherwise, before the publication
-- or after: one of the day, a deletion without a day, and one that went to another day; and one that was set aside, as
-- the day shows something newer, since the publication may bring it back. Each is compared again.
-- No generation is 0, see compare_rows. Made by SELECT alone, so that the live rows are read in parallel.
CREATE TEMPORARY TABLE changed_board ON COMMIT DROP AS
SELECT l.{{key}} AS board_id
  FROM board_detail_live l
 WHERE COALESCE(l.kafka_offset >= COALESCE((%(since)s::bigint[])[l.kafka_partition + 1], 0), true)
   AND (l.day IS NULL OR l.day = %(day)s
        OR EXISTS (SELECT 1 FROM board_detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = l.{{key}})
        OR EXISTS (SELECT 1 FROM board_detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(shown_id)s, 0) AND f.{{key}} = l.{{key}})
        OR EXISTS (SELECT 1 FROM board_detail_correction c
                    WHERE c.generation_id = %(generation_id)s AND c.board_id = l.{{key}}))
 UNION
SELECT c.{{key}}
  FROM board_detail_covered c
 WHERE c.day = %(day)s
   AND COALESCE(c.kafka_offset >= COALESCE((%(since)s::bigint[])[c.kafka_partition + 1], 0), true)
