SELECT count(*) FROM board_detail_final WHERE generation_id = %(generation_id)s
