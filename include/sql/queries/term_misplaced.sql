SELECT COALESCE(misplaced_count, 0) FROM generation WHERE id = %(generation_id)s
