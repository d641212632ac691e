SELECT EXISTS (SELECT 1 FROM pending_board
                WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s AND sent_at IS NULL)
