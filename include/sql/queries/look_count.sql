SELECT count(*) AS count FROM board_detail_masked WHERE {{key}} >= %(first_id)s AND {{key}} < %(end_id)s
