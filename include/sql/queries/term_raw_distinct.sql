SELECT raw_distinct FROM generation WHERE id = %(generation_id)s
