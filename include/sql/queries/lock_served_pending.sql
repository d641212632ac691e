-- In one order, as whoever marks pending boards does it. Locking comes first, by a statement of its own: a row that was
-- marked meanwhile is seen by the deletion only then.
SELECT 1
  FROM pending_board p JOIN stage_detail s ON s.{{key}} = p.board_id
 WHERE (s.{{version}}, s.board_offset) >= (p.version_at, p."offset")
    OR (p.topic = %(topic)s AND s.board_partition = p.partition AND s.board_offset = p."offset")
 ORDER BY p.topic, p.partition, p."offset"
   FOR UPDATE OF p
