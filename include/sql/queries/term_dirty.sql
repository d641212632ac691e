SELECT COALESCE(sum(count), 0) FROM dirty_day WHERE day = %(day)s AND cause <> 'unread board'
