DELETE FROM dirty_day WHERE day = %(day)s
