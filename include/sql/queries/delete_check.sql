-- Unless the day was entered again meanwhile.
DELETE FROM unchecked_day WHERE day = %(day)s AND request = %(request)s
