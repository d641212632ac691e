SELECT status FROM generation WHERE day = %(day)s AND id = %(generation_id)s
