-- The base is what the day shows now: whoever publishes this build later must still find it there.
INSERT INTO generation (day, run_id, reason, cut, starts, base_generation_id)
VALUES (%(day)s, %(run_id)s, %(reason)s, %(cut)s, %(starts)s,
        (SELECT generation_id FROM day_publication WHERE day = %(day)s))
RETURNING id
