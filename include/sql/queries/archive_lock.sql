SELECT pg_try_advisory_lock(7203003, 0)
