SELECT * FROM day_status WHERE day = %(day)s
