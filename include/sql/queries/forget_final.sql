DELETE FROM board_detail_final WHERE member_id = %(member_id)s RETURNING generation_id
