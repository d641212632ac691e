-- A run that tries again is one.
INSERT INTO day_attempt AS a (day, run_id) VALUES (%(day)s, %(run_id)s)
ON CONFLICT (day) DO UPDATE
   SET runs = a.runs + (a.run_id <> excluded.run_id)::integer, run_id = excluded.run_id, last_at = now()
