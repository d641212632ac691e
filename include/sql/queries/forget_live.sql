DELETE FROM board_detail_live WHERE member_id = %(member_id)s
