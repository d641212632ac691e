-- A board that began to wait just after its newer version was served: nothing else would look at it again.
DELETE FROM pending_board p
 USING board_detail_live l
 WHERE l.{{key}} = p.board_id
   AND (l.{{version}}, l.board_offset) >= (p.version_at, p."offset")
