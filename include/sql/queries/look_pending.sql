SELECT 1 AS found FROM pending_board WHERE board_id = %(board_id)s
