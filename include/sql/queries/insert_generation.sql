INSERT INTO generation (day, run_id, reason, cut) VALUES (%(day)s, %(run_id)s, %(reason)s, %(cut)s) RETURNING id
