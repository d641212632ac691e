SELECT count(*) FROM board_detail_correction
 WHERE generation_id = %(generation_id)s AND class = 'unexplained'
