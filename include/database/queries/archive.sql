-- The catalogue of the archive.

-- name: archive_lock
SELECT pg_try_advisory_lock(7203003, 0)

-- name: archive_claim_identity
INSERT INTO pipeline_setting (name, value) VALUES ('archive_id', gen_random_uuid()::text)
ON CONFLICT (name) DO NOTHING

-- name: archive_select_identity
SELECT value FROM pipeline_setting WHERE name = 'archive_id'

-- name: archive_insert_batch
-- Records that reached Kafka after the batch was taken may be missing: of two clocks, the earlier one hides none.
INSERT INTO archive_batch (run_id, topic, topic_id, starts, ends, newest, record_count, gap, gap_since, gap_until,
                           gap_reason, taken_at)
VALUES (%(run_id)s, %(topic)s, %(topic_id)s, %(starts)s, %(ends)s, %(newest)s, %(record_count)s, %(gap)s,
        %(gap_since)s, %(gap_until)s, %(gap_reason)s, LEAST(%(taken_at)s, now()))
RETURNING id

-- name: archive_retire_files
-- Fewer rows than paths means that another run retired one, and this transaction must not commit.
UPDATE archive_file SET retired_at = now() WHERE path = ANY (%(paths)s) AND retired_at IS NULL

-- name: archive_take_away
UPDATE archive_batch SET record_count = record_count - %(count)s WHERE id = %(batch_id)s

-- name: archive_select_files
SELECT f.batch_id, f.kind, f.day, f.path, f.record_count, f.byte_count, f.first_key, f.last_key
  FROM archive_file f
  JOIN archive_batch b ON b.id = f.batch_id
 WHERE b.topic_id = %(topic_id)s AND f.kind = %(kind)s AND f.retired_at IS NULL
 ORDER BY f.batch_id, f.path

-- name: archive_select_files_of_day
-- Those of the day, and those of no day, which may hold records of any.
SELECT f.batch_id, f.kind, f.day, f.path, f.record_count, f.byte_count, f.first_key, f.last_key
  FROM archive_file f
  JOIN archive_batch b ON b.id = f.batch_id
 WHERE b.topic_id = %(topic_id)s AND f.kind = %(kind)s AND f.retired_at IS NULL
   AND (f.day = %(day)s OR f.day IS NULL)
 ORDER BY f.batch_id, f.path

-- name: archive_select_files_of_keys
-- Files of other days that may hold records of these ids.
SELECT f.batch_id, f.kind, f.day, f.path, f.record_count, f.byte_count, f.first_key, f.last_key
  FROM archive_file f
  JOIN archive_batch b ON b.id = f.batch_id
 WHERE b.topic_id = %(topic_id)s AND f.kind = 'records' AND f.retired_at IS NULL
   AND f.day <> %(day)s AND f.first_key <= %(last_key)s AND f.last_key >= %(first_key)s
 ORDER BY f.batch_id, f.path

-- name: archive_select_files_of_batch
SELECT batch_id, kind, day, path, record_count, byte_count, first_key, last_key
  FROM archive_file
 WHERE batch_id = %(batch_id)s AND kind = 'records' AND retired_at IS NULL
 ORDER BY path

-- name: archive_select_all_files
SELECT batch_id, kind, day, path, record_count, byte_count, first_key, last_key
  FROM archive_file
 WHERE retired_at IS NULL
 ORDER BY batch_id, path

-- name: archive_select_paths
SELECT path FROM archive_file

-- name: archive_select_retired
SELECT path FROM archive_file WHERE retired_at < now() - make_interval(secs => %(after_s)s) ORDER BY path

-- name: archive_delete_retired
DELETE FROM archive_file WHERE path = ANY (%(paths)s) AND retired_at IS NOT NULL

-- name: archive_select_uncounted
-- Batches whose files do not hold as many records as the batch says. Of the table's topic the raw records are counted.
SELECT b.id, b.record_count, COALESCE(sum(f.record_count), 0)::bigint AS listed
  FROM archive_batch b
  LEFT JOIN archive_file f ON f.batch_id = b.id AND f.kind <> 'versions' AND f.retired_at IS NULL
 GROUP BY b.id
HAVING b.record_count <> COALESCE(sum(f.record_count), 0)
 ORDER BY b.id

-- name: archive_insert_files
INSERT INTO archive_file (batch_id, kind, day, path, record_count, byte_count, first_key, last_key) VALUES %s

-- name: archive_select_batches
SELECT id, topic, topic_id, starts, ends, newest, record_count, gap, gap_since, gap_until, gap_reason, taken_at
  FROM archive_batch
 WHERE topic = %(topic)s
 ORDER BY id

-- name: select_ledger
SELECT partition, next_offset FROM offset_ledger WHERE consumer = %(consumer)s AND topic_id = %(topic_id)s

-- name: select_archive_lag
-- Offsets of the topic that the stream has passed and the archive has not, and when the archive last looked for records.
SELECT (SELECT COALESCE(sum(GREATEST(s.next_offset - COALESCE(a.next_offset, 0), 0)), 0)
          FROM offset_ledger s
          LEFT JOIN offset_ledger a ON (a.consumer, a.topic_id, a.partition) = ('archive', s.topic_id, s.partition)
         WHERE s.consumer = 'join' AND s.topic = %(topic)s),
       (SELECT max(taken_at) FROM archive_batch WHERE topic = %(topic)s)
