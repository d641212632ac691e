SELECT count(*) AS count FROM pending_board WHERE board_id >= %(first_id)s AND board_id < %(end_id)s
