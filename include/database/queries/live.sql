-- The live table: a batch of the output topic is staged, compared with what is there, and written.

-- name: create_stage_detail
-- Once a connection: made anew for each batch it would cost as much as a small batch itself.
CREATE TEMPORARY TABLE IF NOT EXISTS stage_detail (
    {{served_typed}},
    day date,
    deleted boolean NOT NULL
) ON COMMIT DELETE ROWS

-- name: share_pointers
-- The keys of a tombstone without a day, and of a record that becomes pending, are looked for in the published days: none
-- of these may show another generation until both are written.
SELECT pg_advisory_xact_lock_shared(7203004, 0)

-- name: begin_rows
SAVEPOINT batch_rows

-- name: undo_rows
ROLLBACK TO SAVEPOINT batch_rows

-- name: truncate_stage_detail
TRUNCATE stage_detail

-- name: keep_rows
RELEASE SAVEPOINT batch_rows

-- name: copy_live
COPY detail_live ({{served}}, day, deleted) FROM STDIN (FORMAT binary)

-- name: copy_stage_detail
COPY stage_detail ({{served}}, day, deleted) FROM STDIN (FORMAT binary)

-- name: lock_staged_pending
-- In one order, as whoever marks pending records does it. Locking comes first, by a statement of its own: a row that was
-- marked meanwhile is seen by what follows only then.
SELECT 1
  FROM pending_record p JOIN stage_detail s ON s.{{key}} = p.{{key}}
 ORDER BY p.topic, p.partition, p."offset"
   FOR UPDATE OF p

-- name: delete_served_pending
-- A record is pending until its row, or a newer version of its key, is served.
DELETE FROM pending_record p
 USING stage_detail s
 WHERE s.{{key}} = p.{{key}}
   AND ((s.{{version}}, s.stream_offset) >= (p.version_at, p."offset")
        OR (p.topic = %(topic)s AND s.stream_partition = p.partition AND s.stream_offset = p."offset"))

-- name: hide_staged
-- Older versions of keys whose newest record stays pending.
UPDATE pending_record p SET hides = true FROM stage_detail s WHERE s.{{key}} = p.{{key}} AND NOT p.hides

-- name: drop_superseded_staged
-- A covered row is the newest that was served of its key, wherever it was moved since: an older version is no news.
DELETE FROM stage_detail s
 USING detail_covered c
 WHERE c.{{key}} = s.{{key}} AND (c.{{version}}, c.stream_offset) > (s.{{version}}, s.stream_offset)

-- name: fence_staged
-- Of one published day: what its generation covers, or knows in the same version or a newer one, be it as a row or as a
-- key that was deleted or has moved, is not written again.
-- It is set aside, so that an undo has it. The day is given as a value, so that no table of another day is locked.
WITH fenced AS (
    SELECT s.*
      FROM stage_detail s JOIN day_publication p ON p.day = s.day
     WHERE s.day = date '1970-01-01' + %(day_number)s
       AND (is_covered(p.generation_id, p.stream_ends, p.table_ends, s.{{key}}, s.stream_partition, s.stream_offset,
                       s.table_partition, s.table_offset)
            OR EXISTS (SELECT 1 FROM detail_final f
                        WHERE f.day = date '1970-01-01' + %(day_number)s AND f.generation_id = %(generation_id)s
                          AND f.{{key}} = s.{{key}}
                          AND (f.{{version}}, ordered_offset(f.stream_offset, p.stream_ends))
                              >= (s.{{version}}, s.stream_offset))
            OR EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = %(generation_id)s AND e.{{key}} = s.{{key}}
                          AND (e.version_at, ordered_offset(e.stream_offset, p.stream_ends))
                              >= (s.{{version}}, s.stream_offset)))
), superseded AS (
    -- An older row on top of the generation is no news either. It may be there when the stream's topic was made again.
    DELETE FROM detail_live l USING fenced f
     WHERE l.day = date '1970-01-01' + %(day_number)s AND l.{{key}} = f.{{key}}
       AND (l.{{version}}, l.stream_offset) < (f.{{version}}, f.stream_offset)
), kept AS (
    INSERT INTO detail_covered AS c ({{served}}, day, deleted, written_at, generation_id)
    SELECT {{served}}, day, deleted, now(), %(generation_id)s FROM fenced ORDER BY {{key}}
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = now()
     WHERE (excluded.{{version}}, excluded.stream_offset) > (c.{{version}}, c.stream_offset)
)
DELETE FROM stage_detail s USING fenced f WHERE s.{{key}} = f.{{key}}

-- name: delete_covered_again
-- A record that is pending in the generation and whose table key has come: the row that stands there was covered with
-- it, and gives way to the same version with the values of the table.
DELETE FROM detail_live l
 USING stage_detail s, day_publication p
 WHERE s.{{key}} = l.{{key}} AND p.day = l.day
   AND (l.{{version}}, l.stream_partition, l.stream_offset) = (s.{{version}}, s.stream_partition, s.stream_offset)
   AND is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                  l.table_partition, l.table_offset)

-- name: upsert_live
INSERT INTO detail_live AS l ({{served}}, day, deleted)
SELECT {{served}}, day, deleted FROM stage_detail ORDER BY {{key}}
ON CONFLICT ({{key}}) DO UPDATE
   SET {{served_excluded}}, day = COALESCE(excluded.day, l.day), deleted = excluded.deleted, written_at = now()
 WHERE (excluded.{{version}}, excluded.stream_offset) > (l.{{version}}, l.stream_offset)

-- name: mark_staged_days_dirty
INSERT INTO dirty_day AS d (day, cause, count)
SELECT s.day,
       CASE WHEN s.stream_offset < p.stream_ends[s.stream_partition + 1]
            THEN 'late {{table}}' ELSE 'late {{stream}}' END AS cause,
       count(*)
  FROM stage_detail s JOIN day_publication p ON p.day = s.day AND p.generation_id IS NOT NULL
 GROUP BY 1, 2
 ORDER BY 2, 1
ON CONFLICT (day, cause) DO UPDATE SET count = d.count + excluded.count, last_at = now()

-- name: count_staged_duplicates
-- Made from the same stream record as the row that stands there, by another record of the output topic.
SELECT count(*)
  FROM stage_detail s JOIN detail_live l USING ({{key}})
 WHERE (l.stream_partition, l.stream_offset) = (s.stream_partition, s.stream_offset)
   AND (l.kafka_partition, l.kafka_offset) IS DISTINCT FROM (s.kafka_partition, s.kafka_offset)

-- name: select_known_keys
-- Those of the keys that have a row, live or covered, or are pending; no more than the limit.
-- The planner does not see the keys: it would estimate for each of them, three times, and read the table by workers.
WITH wanted AS MATERIALIZED (SELECT %(keys)s::bigint[] AS keys)
SELECT {{key}} FROM detail_live WHERE {{key}} = ANY ((SELECT keys FROM wanted)::bigint[])
UNION ALL
SELECT {{key}} FROM detail_covered WHERE {{key}} = ANY ((SELECT keys FROM wanted)::bigint[])
UNION ALL
SELECT {{key}} FROM pending_record WHERE {{key}} = ANY ((SELECT keys FROM wanted)::bigint[])
LIMIT %(limit)s

-- name: open_days
INSERT INTO day_publication (day)
SELECT date '1970-01-01' + number AS day FROM unnest(%(days)s::int[]) AS number ORDER BY day
ON CONFLICT (day) DO NOTHING

-- name: lock_days
-- Publishing a day waits for this transaction, and this one for a publication under way: the fence holds afterwards.
SELECT day - date '1970-01-01', generation_id
  FROM day_publication
 WHERE day IN (SELECT date '1970-01-01' + number FROM unnest(%(days)s::int[]) AS number)
 ORDER BY day FOR SHARE

-- name: end_acknowledgements
-- Of days that records reach, which nobody had seen who acknowledged them. The days are locked, so that nobody does now.
DELETE FROM acknowledged_day WHERE day IN (SELECT date '1970-01-01' + number FROM unnest(%(days)s::int[]) AS number)

-- name: select_dayless_tombstones
SELECT {{key}} FROM stage_detail WHERE deleted AND day IS NULL ORDER BY {{key}}

-- name: select_shown_keys
-- Rows, and pending keys as older than all of them: of these no version is kept.
SELECT {{key}}, {{version}}, stream_offset
  FROM detail_final
 WHERE day = date '1970-01-01' + %(day_number)s AND generation_id = %(generation_id)s
   AND {{key}} = ANY (%(keys)s::bigint[])
 UNION ALL
SELECT {{key}}, 'epoch', stream_offset
  FROM generation_excluded
 WHERE generation_id = %(generation_id)s AND kind = 'pending' AND {{key}} = ANY (%(keys)s::bigint[])

-- name: set_days_of_staged_tombstones
-- In the day whose generation has the key; else in that of its row, or of its pending record.
UPDATE stage_detail s
   SET day = COALESCE(
       (SELECT date '1970-01-01' + shown.number
          FROM unnest(%(keys)s::bigint[], %(days)s::int[]) AS shown (key, number) WHERE shown.key = s.{{key}}),
       (SELECT l.day FROM detail_live l WHERE l.{{key}} = s.{{key}}),
       (SELECT c.day FROM detail_covered c WHERE c.{{key}} = s.{{key}}
         ORDER BY c.{{version}} DESC, c.stream_offset DESC LIMIT 1),
       (SELECT w.day FROM pending_record w WHERE w.{{key}} = s.{{key}}
         ORDER BY w.version_at DESC, w."offset" DESC LIMIT 1))
 WHERE s.deleted AND s.day IS NULL
RETURNING s.day - date '1970-01-01'
