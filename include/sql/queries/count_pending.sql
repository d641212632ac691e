SELECT count(*) FROM pending_board
