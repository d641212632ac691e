UPDATE forgotten_member SET removed = removed || %(removed)s::jsonb, last_at = now() WHERE member_id = %(member_id)s
