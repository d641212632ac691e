-- Those of the day, and those of no day, which may hold records of any.
SELECT f.batch_id, f.kind, f.day, f.path, f.record_count, f.byte_count, f.first_key, f.last_key
  FROM archive_file f
  JOIN archive_batch b ON b.id = f.batch_id
 WHERE b.topic_id = %(topic_id)s AND f.kind = %(kind)s AND f.retired_at IS NULL
   AND (f.day = %(day)s OR f.day IS NULL)
 ORDER BY f.batch_id, f.path
