DELETE FROM pending_board WHERE member_id = %(member_id)s
