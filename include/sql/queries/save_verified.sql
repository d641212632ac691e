UPDATE generation
   SET verified_at = now(), verified_shown_id = %(shown_id)s, verified_position = %(position)s
 WHERE id = %(generation_id)s
