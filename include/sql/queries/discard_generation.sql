UPDATE generation SET status = 'discarded' WHERE id = %(generation_id)s AND status = %(status)s
