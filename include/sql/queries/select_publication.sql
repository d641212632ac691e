SELECT generation_id, content_hash, status FROM day_publication WHERE day = %(day)s FOR UPDATE
