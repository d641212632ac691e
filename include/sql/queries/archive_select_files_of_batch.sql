SELECT batch_id, kind, day, path, record_count, byte_count, first_key, last_key
  FROM archive_file
 WHERE batch_id = %(batch_id)s AND kind = 'records' AND retired_at IS NULL
 ORDER BY path
