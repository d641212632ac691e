-- The newest days of the Integrity page, newest first.
SELECT day,
       status,
       row_count,
       pending_count,
       rejected_count,
       correction_count,
       live_row_count,
       dirty_count,
       generation_id,
       published_at,
       rebuildable_until
  FROM day_status
 ORDER BY day DESC
 LIMIT %(limit)s
