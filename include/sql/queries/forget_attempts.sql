DELETE FROM day_attempt WHERE day = %(day)s
