-- Days to build, check, certify or show, and the reasons.

-- name: select_archive_start
-- The number of archived batches of the topic, the end of the last gap, null if there is no gap, and since when the
-- database is there.
SELECT count(*) AS batches, max(gap_until) AS missing_until,
       (SELECT min(first_seen_at) FROM database_timeline) AS begun_at
  FROM archive_batch WHERE topic = %(topic)s

-- name: select_dirty_days
SELECT d.day, jsonb_object_agg(d.cause, d.count ORDER BY d.cause) AS causes, p.held_reason
  FROM dirty_day d JOIN day_publication p ON p.day = d.day
 GROUP BY d.day, p.held_reason
 ORDER BY d.day DESC

-- name: select_held_days
SELECT day, held_reason FROM day_publication WHERE held_reason IS NOT NULL

-- name: select_is_published
SELECT EXISTS (SELECT FROM day_publication WHERE day = %(day)s AND generation_id IS NOT NULL)

-- name: count_waiting_days
-- Days that a night would rebuild: never published, or dirty for records that a rebuild can read, and not held.
SELECT count(*)
  FROM day_publication p JOIN day_trust t ON t.day = p.day
 WHERE p.day BETWEEN %(oldest)s AND %(newest)s AND t.held_reason IS NULL
   AND (p.generation_id IS NULL OR t.dirty - 'unread {{stream}}' <> '{}')

-- name: select_attempts
SELECT day, runs FROM day_attempt WHERE runs >= %(runs)s

-- name: select_uncertified_days
-- Published, without a certificate, and nothing reached them since.
SELECT p.day
  FROM day_publication p
 WHERE p.status = 'rebuilt' AND p.generation_id IS NOT NULL AND p.held_reason IS NULL
   AND NOT EXISTS (SELECT FROM dirty_day d WHERE d.day = p.day)
 ORDER BY p.day DESC

-- name: lock_acknowledged_days
-- A batch of the stream that writes into one of them has ended, or begins afterwards.
SELECT FROM day_publication WHERE day = %(day)s OR %(and_before)s AND day < %(day)s ORDER BY day FOR UPDATE

-- name: acknowledge_days
-- The day, or with `and_before` every day until then that can no longer be rebuilt, and that has no certificate or is
-- dirty. A day that can be rebuilt is taken alone, if it is held, or is published and not dirty. Returns the days.
INSERT INTO acknowledged_day AS a (day, reason, made_by, made_at)
SELECT p.day, %(reason)s, %(made_by)s, clock_timestamp()
  FROM day_publication p
 WHERE (p.day = %(day)s OR %(and_before)s AND p.day < %(day)s)
   AND (p.day < %(oldest)s
        OR NOT %(and_before)s
           AND (p.held_reason IS NOT NULL
                OR p.generation_id IS NOT NULL AND NOT EXISTS (SELECT FROM dirty_day d WHERE d.day = p.day)))
   AND (p.status <> 'certified' OR EXISTS (SELECT FROM dirty_day d WHERE d.day = p.day))
   AND NOT EXISTS (SELECT FROM day_acknowledgement k WHERE k.day = p.day)
 ORDER BY p.day
ON CONFLICT (day) DO UPDATE SET reason = excluded.reason, made_by = excluded.made_by, made_at = excluded.made_at
RETURNING day

-- name: withdraw_acknowledgements
DELETE FROM acknowledged_day WHERE day = %(day)s OR %(and_before)s AND day < %(day)s RETURNING day

-- name: select_unpublished_days
-- Days of which something is known, and whether they show a generation: the stream opened them, records of them are
-- pending or archived, or the system of record has records of them. It is asked for the given days alone.
SELECT k.day, bool_or(p.generation_id IS NOT NULL) AS is_published
  FROM (SELECT day FROM day_publication
         UNION
        SELECT day FROM pending_record
         UNION
        SELECT day FROM archive_file WHERE kind = 'records' AND retired_at IS NULL
         UNION
        SELECT asked.day
          FROM unnest(%(days)s::date[], %(starts)s::text[], %(ends)s::text[]) AS asked (day, start_at, end_at)
         WHERE EXISTS (SELECT FROM recorded r
                        WHERE r.recorded_at >= asked.start_at AND r.recorded_at < asked.end_at)) k
  LEFT JOIN day_publication p ON p.day = k.day
 WHERE k.day BETWEEN '0001-01-01' AND %(newest)s
 GROUP BY k.day

-- name: request_check
INSERT INTO unchecked_day (day) VALUES (%(day)s) ON CONFLICT (day) DO UPDATE SET request = DEFAULT, has_moved = true

-- name: select_unchecked_days
-- All of them, or one.
SELECT day, request, has_moved FROM unchecked_day WHERE %(day)s::date IS NULL OR day = %(day)s ORDER BY day DESC

-- name: select_days_left
-- Published days between whose keys the speed layer has a row, a deletion or a pending record of another day. The order
-- leads over the index of keys. All such days, or one if it is.
SELECT p.day
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE (%(day)s::date IS NULL OR p.day = %(day)s)
   AND ((SELECT true FROM detail_live l
          WHERE l.{{key}} BETWEEN g.first_key AND g.last_key AND l.day <> p.day ORDER BY l.{{key}} LIMIT 1)
        OR (SELECT true FROM pending_record w
             WHERE w.{{key}} BETWEEN g.first_key AND g.last_key AND w.day <> p.day AND w.covered_by IS NULL
             ORDER BY w.{{key}} LIMIT 1))

-- name: count_left_keys
-- Keys that a published day still has, as rows or as pending, although a newer version, from a record that the day was
-- not built from, says another day: only its rebuild takes them out. Of what is pending no version is kept; the build
-- knew the newest of all records up to its cut.
SELECT count(DISTINCT n.{{key}})
  FROM (SELECT {{key}}, {{version}} AS version_at, stream_partition, stream_offset
          FROM detail_live
         WHERE {{key}} BETWEEN %(first_key)s AND %(last_key)s AND day <> %(day)s
         UNION ALL
        SELECT {{key}}, version_at, partition, "offset"
          FROM pending_record
         WHERE {{key}} BETWEEN %(first_key)s AND %(last_key)s AND day <> %(day)s AND covered_by IS NULL) n
  JOIN (SELECT {{key}}, {{version}} AS version_at, stream_offset
          FROM detail_final
         WHERE day = %(day)s AND generation_id = %(generation_id)s
         UNION ALL
        SELECT {{key}}, '-infinity', stream_offset
          FROM generation_excluded
         WHERE generation_id = %(generation_id)s AND kind = 'pending') o ON o.{{key}} = n.{{key}}
 WHERE (n.version_at, n.stream_offset) > (o.version_at, o.stream_offset)
   AND n.stream_offset >= COALESCE((%(stream_ends)s::bigint[])[n.stream_partition + 1], 0)

-- name: count_rows_with_late_version
-- Rows of the day whose table key has a version that is not newer than the row and came after the day's cut.
SELECT count(DISTINCT f.{{key}})
  FROM detail_final f
  JOIN late_version m ON m.{{table_key}} = f.{{table_key}} AND m.version_at <= f.{{version}}
 WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
   AND m."offset" >= COALESCE((%(table_ends)s::bigint[])[m.partition + 1], 0)

-- name: delete_checks
-- Unless a day was entered again meanwhile. Locked in the order in which others enter days.
WITH checked AS (
    SELECT u.day
      FROM unchecked_day u JOIN unnest(%(days)s::date[], %(requests)s::bigint[]) AS c (day, request) USING (day, request)
     ORDER BY u.day FOR UPDATE OF u
)
DELETE FROM unchecked_day u USING checked c WHERE u.day = c.day

-- name: select_days_sharing_keys
-- Other published days that may have a key which this day has, or knows as deleted or moved, and the other way round.
-- A day has its rows and what is pending. Of rows this day's table alone is read, at most one key for each other day:
-- the order leads over its index.
SELECT p.day
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE p.day <> %(day)s
   AND ((SELECT true FROM detail_final f
          WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
            AND f.{{key}} BETWEEN g.first_key AND g.last_key ORDER BY f.{{key}} LIMIT 1)
        OR (SELECT true FROM generation_excluded e
             WHERE e.generation_id = %(generation_id)s AND (e.version_at IS NOT NULL OR e.kind = 'pending')
               AND e.{{key}} BETWEEN g.first_key AND g.last_key ORDER BY e.{{key}} LIMIT 1)
        OR (SELECT true FROM generation_excluded e
             WHERE e.generation_id = g.id AND (e.version_at IS NOT NULL OR e.kind = 'pending')
               AND e.{{key}} BETWEEN %(first_key)s AND %(last_key)s ORDER BY e.{{key}} LIMIT 1))

-- name: count_moved_keys
-- Keys that one day has, as rows or as pending, although another one knows a newer version of them, from a record that
-- the first was not built from: a rebuild takes them out. Of what is pending no version is kept; a build knows the newest
-- of all records up to its cut. The days are given as values, so that no table of another day is locked.
SELECT count(DISTINCT o.{{key}})
  FROM (SELECT {{key}}, {{version}} AS version_at, stream_partition, stream_offset
          FROM detail_final
         WHERE day = %(newer_day)s AND generation_id = %(newer_id)s AND {{key}} BETWEEN %(first_key)s AND %(last_key)s
         UNION ALL
        SELECT {{key}}, CASE WHEN kind = 'pending' THEN 'infinity' ELSE version_at END, stream_partition, stream_offset
          FROM generation_excluded
         WHERE generation_id = %(newer_id)s AND (version_at IS NOT NULL OR kind = 'pending')
           AND {{key}} BETWEEN %(first_key)s AND %(last_key)s) n
  JOIN (SELECT {{key}}, {{version}} AS version_at, stream_offset
          FROM detail_final
         WHERE day = %(day)s AND generation_id = %(generation_id)s
         UNION ALL
        SELECT {{key}}, '-infinity', stream_offset
          FROM generation_excluded
         WHERE generation_id = %(generation_id)s AND kind = 'pending') o ON o.{{key}} = n.{{key}}
 WHERE (n.version_at, n.stream_offset) > (o.version_at, o.stream_offset)
   AND n.stream_offset >= COALESCE((%(stream_ends)s::bigint[])[n.stream_partition + 1], 0)

-- name: select_shown
-- The generations that these days show, with the ends of their cuts and their first and last keys: the newest day first.
SELECT p.day, g.id, COALESCE(p.stream_ends, '{}'), COALESCE(p.table_ends, '{}'), g.first_key, g.last_key
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE p.day = ANY (%(days)s::date[])
 ORDER BY p.day DESC

-- name: mark_days_dirty
-- The counts are those of now, so looking twice counts once.
INSERT INTO dirty_day AS d (day, cause, count)
SELECT day, %(cause)s, found FROM unnest(%(days)s::date[], %(counts)s::bigint[]) AS marked (day, found) ORDER BY day
ON CONFLICT (day, cause) DO UPDATE SET count = excluded.count, last_at = now()
 WHERE d.count < excluded.count

-- name: select_kept_generations
-- Generations that a day shows or may show yet: up to where of the table's topic each was built, its newest row, and
-- whether late versions were looked for from there on.
SELECT g.id, g.day, COALESCE(g.table_ends, '{}'), g.newest_version_at, s.generation_id IS NOT NULL, p.generation_id IS NOT NULL
  FROM generation g
  LEFT JOIN searched_generation s ON s.generation_id = g.id
  LEFT JOIN day_publication p ON p.generation_id = g.id
 WHERE g.status IN ('building', 'built', 'published', 'superseded')

-- name: lock_ledger
SELECT partition, next_offset
  FROM offset_ledger
 WHERE consumer = %(consumer)s AND topic_id = %(topic_id)s
 ORDER BY partition
   FOR UPDATE

-- name: insert_searched
-- One that was removed meanwhile needs no search.
INSERT INTO searched_generation (generation_id)
SELECT id FROM generation WHERE id = ANY (%(ids)s::bigint[])
ON CONFLICT DO NOTHING

-- name: forget_late_versions
-- Versions that every kept generation has, or that are newer than all its rows.
DELETE FROM late_version m
 WHERE NOT EXISTS (
       SELECT 1 FROM generation g
        WHERE g.status IN ('building', 'built', 'published', 'superseded')
          AND m."offset" >= COALESCE(g.table_ends[m.partition + 1], 0)
          AND m.version_at <= COALESCE(g.newest_version_at, 'infinity'))

-- name: insert_late_versions
INSERT INTO late_version (topic_id, partition, "offset", {{table_key}}, version_at) VALUES %s ON CONFLICT DO NOTHING

-- name: request_checks
-- Days that show a generation for which one of the versions may be late. Of each partition the oldest version and the
-- last offset are given: a day that none of them concerns costs a look more. A day whose pointer moved is compared with
-- the others all the same.
INSERT INTO unchecked_day (day, has_moved)
SELECT p.day, false
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE EXISTS (
       SELECT 1
         FROM unnest(%(partitions)s::integer[], %(last_offsets)s::bigint[], %(oldest)s::timestamptz[])
                AS late (partition, last_offset, oldest)
        WHERE late.last_offset >= COALESCE(p.table_ends[late.partition + 1], 0)
          AND late.oldest <= COALESCE(g.newest_version_at, 'infinity'))
 ORDER BY p.day
ON CONFLICT (day) DO UPDATE SET request = DEFAULT

-- name: select_day_status
-- The newest days, or one day, newest first.
SELECT s.day,
       s.status,
       s.row_count,
       s.pending_count,
       s.rejected_count,
       s.live_row_count,
       s.dirty_count,
       s.generation_id,
       s.published_at,
       t.certified_at,
       t.corrections,
       t.dirty,
       t.held_reason,
       t.uncertified_reason,
       t.duplicate_count,
       m.made_by,
       m.reason,
       m.action,
       k.made_by,
       k.reason,
       t.delivery
  FROM day_status s
  JOIN day_trust t ON t.day = s.day
  LEFT JOIN LATERAL (SELECT action, made_by, reason FROM publication WHERE day = s.day ORDER BY id DESC LIMIT 1) m
         ON true
  LEFT JOIN day_acknowledgement k ON k.day = s.day
 WHERE %(day)s::date IS NULL OR s.day = %(day)s::date
 ORDER BY s.day DESC
 LIMIT %(limit)s

-- name: select_run
-- Progress or result of the newest build of the day.
SELECT generation_id, run_id, phase, source, records_read, records_total, rows_loaded, error, phase_at
  FROM rebuild_run WHERE day = %(day)s ORDER BY generation_id DESC LIMIT 1

-- name: select_certificate
SELECT term, value, query, note FROM day_certificate WHERE generation_id = %(generation_id)s ORDER BY position

-- name: select_day_corrections
-- Some rows of each class.
SELECT class, key, shown, rebuilt, changed
  FROM (SELECT *, row_number() OVER (PARTITION BY class ORDER BY key) AS number
          FROM day_correction WHERE generation_id = %(generation_id)s) numbered
 WHERE number <= %(limit)s
 ORDER BY class, key

-- name: select_left_out
SELECT kind, COALESCE(reason, ''), count(*)
  FROM generation_excluded
 WHERE generation_id = %(generation_id)s
 GROUP BY kind, reason
 ORDER BY kind, count(*) DESC
 LIMIT 100

-- name: select_announcement
-- A day that was published before, with its last action.
SELECT CASE WHEN m.action = 'publish' AND m.from_generation_id IS NOT NULL THEN 'republish' ELSE m.action END,
       s.status,
       s.generation_id,
       p.content_hash,
       s.row_count,
       t.corrections
  FROM day_status s
  JOIN day_publication p ON p.day = s.day
  JOIN day_trust t ON t.day = s.day
  JOIN publication m ON m.day = s.day
 WHERE s.day = %(day)s
 ORDER BY m.id DESC
 LIMIT 1

-- name: select_generations_of_day
SELECT g.id, g.run_id, g.reason, g.status, g.row_count, g.pending_count, g.rejected_count, g.duplicate_count,
       g.content_hash, g.built_at, g.published_at, g.id IS NOT DISTINCT FROM %(generation_id)s
  FROM generation g
 WHERE g.day = %(day)s
 ORDER BY g.id DESC
 LIMIT 50

-- name: select_difference
-- Rows that differ between two generations of the day, up to `limit` of them, with the count of their class.
SELECT class, total, key, before, after, changed
  FROM generation_difference(%(day)s, %(from_id)s, %(to_id)s, %(limit)s)
