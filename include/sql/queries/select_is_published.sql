SELECT EXISTS (SELECT FROM day_publication WHERE day = %(day)s AND generation_id IS NOT NULL)
