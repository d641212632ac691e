DELETE FROM member WHERE id = %(member_id)s
