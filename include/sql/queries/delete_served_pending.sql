-- A board waits until its detail, or anything newer of it, is served.
DELETE FROM pending_board p
 USING stage_detail s
 WHERE s.{{key}} = p.board_id
   AND ((s.{{version}}, s.board_offset) >= (p.version_at, p."offset")
        OR (p.topic = %(topic)s AND s.board_partition = p.partition AND s.board_offset = p."offset"))
