-- A board that began to wait just after its newer version was served: nothing else would look at it again. Locked in the
-- order in which others lock them.
WITH superseded AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_board p JOIN board_detail_live l ON l.{{key}} = p.board_id
     WHERE (l.{{version}}, l.board_offset) >= (p.version_at, p."offset")
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
DELETE FROM pending_board p
 USING superseded s
 WHERE p.topic = s.topic AND p.partition = s.partition AND p."offset" = s."offset"
