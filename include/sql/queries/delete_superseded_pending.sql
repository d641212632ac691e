-- A deleted board waits for nobody.
DELETE FROM pending_board p
 USING unnest(%(board_ids)s::bigint[], %(offsets)s::bigint[]) AS gone (board_id, "offset")
 WHERE p.board_id = gone.board_id AND p."offset" < gone."offset"
