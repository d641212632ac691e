SELECT pg_try_advisory_lock(7203002, %(day_number)s)
