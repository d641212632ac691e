DELETE FROM day_certificate WHERE generation_id = %(generation_id)s
