SELECT count(*) FROM board_detail_final WHERE day = %(day)s AND generation_id = %(generation_id)s
