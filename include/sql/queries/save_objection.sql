UPDATE generation SET uncertified_reason = %(reason)s WHERE id = %(generation_id)s
