SELECT verified_at, verified_shown_id, verified_position, unlisted_corrections IS NOT NULL
  FROM generation WHERE id = %(generation_id)s
