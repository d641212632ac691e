-- Runs whose driver is gone: the day is held by this one, so none of them goes on.
UPDATE rebuild_run
   SET phase = 'failed', error = 'its driver ended without a word', finished_at = now()
 WHERE day = %(day)s AND phase NOT IN ('built', 'failed')
