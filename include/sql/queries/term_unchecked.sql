SELECT count(*) FROM unchecked_day WHERE day = %(day)s
