SELECT held_reason FROM day_publication WHERE day = %(day)s
