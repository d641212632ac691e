UPDATE day_publication SET held_reason = %(reason)s WHERE day = %(day)s
