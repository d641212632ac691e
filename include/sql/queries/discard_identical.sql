UPDATE generation SET status = 'discarded', identical_to = %(shown_id)s WHERE id = %(generation_id)s
