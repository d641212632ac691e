-- The newest build of the run; without a run the newest that is built or shown. One that was given up because the day
-- showed the same counts too: whoever tries again finds it done.
SELECT id, status, base_generation_id, identical_to
  FROM generation
 WHERE day = %(day)s
   AND (status IN ('built', 'published') OR identical_to IS NOT NULL
        OR (status = 'superseded' AND %(run_id)s::text IS NOT NULL))
   AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
 ORDER BY id DESC LIMIT 1
