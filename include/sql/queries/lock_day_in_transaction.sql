SELECT pg_advisory_xact_lock(7203003, %(day_number)s)
