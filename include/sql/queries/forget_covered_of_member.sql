DELETE FROM board_detail_covered WHERE member_id = %(member_id)s
