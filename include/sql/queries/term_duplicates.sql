SELECT COALESCE(sum((rebuilt ->> 'copies')::bigint - 1), 0) FROM board_detail_correction
 WHERE generation_id = %(generation_id)s AND class = 'duplicate'
