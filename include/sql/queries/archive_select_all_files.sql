SELECT batch_id, kind, day, path, record_count, byte_count, first_key, last_key
  FROM archive_file
 WHERE retired_at IS NULL
 ORDER BY batch_id, path
