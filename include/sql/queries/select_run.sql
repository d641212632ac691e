-- How far the newest build of the day is, or how it ended.
SELECT generation_id, run_id, phase, source, records_read, records_total, rows_loaded, error, phase_at
  FROM rebuild_run WHERE day = %(day)s ORDER BY generation_id DESC LIMIT 1
