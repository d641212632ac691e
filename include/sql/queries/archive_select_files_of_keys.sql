-- Files of other days that may hold records of these ids.
SELECT f.batch_id, f.kind, f.day, f.path, f.record_count, f.byte_count, f.first_key, f.last_key
  FROM archive_file f
  JOIN archive_batch b ON b.id = f.batch_id
 WHERE b.topic_id = %(topic_id)s AND f.kind = 'records' AND f.retired_at IS NULL
   AND f.day <> %(day)s AND f.first_key <= %(last_key)s AND f.last_key >= %(first_key)s
 ORDER BY f.batch_id, f.path
