SELECT id, day, run_id, status, cut, raw_distinct, row_count, pending_count, rejected_count, duplicate_count,
       content_hash
  FROM generation
 WHERE day = %(day)s AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
   AND status IN ('built', 'published')
 ORDER BY id DESC LIMIT 1
