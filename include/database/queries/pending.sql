-- Pending records, whose table key is not known yet, and records rejected by hand.

-- name: insert_rejects
INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
VALUES %s
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: select_rejects_at
SELECT topic, partition, "offset" FROM reject
  JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
 USING (topic, partition, "offset")

-- name: insert_pending
INSERT INTO pending_record
    (topic, partition, "offset", {{key}}, {{table_key}}, day, key, value, kafka_timestamp, event_id, accepted_at, version_at,
     traceparent, hides)
VALUES %s
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: select_served_versions
-- The rows of these keys, in front of readers or covered: a covered one is the newest that was served of its key.
SELECT {{key}}, {{version}}, stream_offset, event_id FROM detail_live WHERE {{key}} = ANY (%(keys)s::bigint[])
 UNION ALL
SELECT {{key}}, {{version}}, stream_offset, event_id FROM detail_covered WHERE {{key}} = ANY (%(keys)s::bigint[])

-- name: open_days_of_pending
-- Before the records are inserted: serve, too, adds days before it locks records. Returns what the published days show.
WITH opened AS (
    INSERT INTO day_publication (day) SELECT unnest(%(days)s::date[]) AS day ORDER BY day ON CONFLICT (day) DO NOTHING
)
SELECT day, generation_id FROM day_publication
 WHERE day = ANY (%(days)s::date[]) AND generation_id IS NOT NULL
 ORDER BY day

-- name: cover_pending
-- The pending records of a day that does or will show the generation, or none; or those of this transaction alone. It
-- covers a record whose version of the key it knows, or a newer one, be it as a row or as a key that was deleted or has
-- moved; the others wait. Returns how many of these came after its cut. Locked in the order in which others lock
-- them. No generation is 0, see compare_rows. A record hides what the day or the speed layer has of its key.
-- A record of another day is deleted if this generation knows a newer version, and otherwise hides what it has of its
-- key: no day shows an older version than one that waits, nor waits for an older one than a day shows.
WITH found AS (
    SELECT topic, partition, "offset", {{key}}, version_at, event_id, day = %(day)s AS is_own
      FROM pending_record
     WHERE CASE WHEN %(only_new)s THEN day = %(day)s AND pending_since = now()
                ELSE day = %(day)s
                     OR {{key}} BETWEEN (SELECT first_key FROM generation WHERE id = %(generation_id)s)
                                    AND (SELECT last_key FROM generation WHERE id = %(generation_id)s) END
     ORDER BY topic, partition, "offset"
       FOR UPDATE
), decided AS (
    SELECT w.topic, w.partition, w."offset", w.is_own, r.is_read,
           r.is_read AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                                      WHERE e.generation_id = %(generation_id)s AND e.{{key}} = w.{{key}}
                                        AND e.kind = 'pending')
           OR EXISTS (SELECT 1 FROM detail_final f
                       WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(generation_id)s, 0)
                         AND f.{{key}} = w.{{key}}
                         AND ((f.{{version}}, ordered_offset(f.stream_offset, g.stream_ends))
                              >= (w.version_at, w."offset")
                              OR f.{{version}} = w.version_at AND f.event_id = w.event_id))
           OR EXISTS (SELECT 1 FROM generation_excluded e
                       WHERE e.generation_id = %(generation_id)s AND e.{{key}} = w.{{key}}
                         AND (w.is_own OR e.kind = 'deleted')
                         AND (e.version_at, ordered_offset(e.stream_offset, g.stream_ends))
                             >= (w.version_at, w."offset")) AS is_covered,
           EXISTS (SELECT 1 FROM detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(generation_id)s, 0) AND f.{{key}} = w.{{key}})
           OR w.is_own AND (EXISTS (SELECT 1 FROM detail_live l WHERE l.{{key}} = w.{{key}})
                            OR EXISTS (SELECT 1 FROM detail_covered c WHERE c.{{key}} = w.{{key}})) AS hides
      FROM found w
      LEFT JOIN generation g ON g.id = %(generation_id)s
     CROSS JOIN LATERAL (SELECT w.is_own AND COALESCE(w."offset" < g.stream_ends[w.partition + 1], false) AS is_read) r
), superseded AS (
    DELETE FROM pending_record w
     USING decided d
     WHERE w.topic = d.topic AND w.partition = d.partition AND w."offset" = d."offset"
       AND d.is_covered AND NOT d.is_own
), covered AS (
    UPDATE pending_record w
       SET covered_by = CASE WHEN d.is_own THEN CASE WHEN d.is_covered THEN (%(generation_id)s)::bigint END
                             ELSE w.covered_by END,
           hides = w.hides OR d.hides
      FROM decided d
     WHERE w.topic = d.topic AND w.partition = d.partition AND w."offset" = d."offset"
       AND (d.is_own AND w.covered_by IS DISTINCT FROM CASE WHEN d.is_covered THEN (%(generation_id)s)::bigint END
            OR d.hides AND NOT w.hides AND (d.is_own OR NOT d.is_covered))
)
SELECT count(*)
  FROM decided
 WHERE is_own AND NOT is_covered AND NOT is_read AND (%(generation_id)s)::bigint IS NOT NULL

-- name: mark_hiding
-- An older version was served just when the record was inserted. Locked in the order in which others lock them.
WITH shown AS (
    SELECT w.topic, w.partition, w."offset"
      FROM pending_record w JOIN detail_live l ON l.{{key}} = w.{{key}}
     WHERE NOT w.hides
     ORDER BY w.topic, w.partition, w."offset"
       FOR UPDATE OF w
)
UPDATE pending_record w
   SET hides = true
  FROM shown s
 WHERE w.topic = s.topic AND w.partition = s.partition AND w."offset" = s."offset"

-- name: mark_late_pending
INSERT INTO dirty_day AS d (day, cause, count) VALUES (%(day)s, 'late {{stream}}', %(count)s)
ON CONFLICT (day, cause) DO UPDATE SET count = d.count + excluded.count, last_at = now()

-- name: select_table_keys_waited_for
SELECT DISTINCT {{table_key}}
  FROM pending_record
 WHERE sent_at IS NULL
   AND (%(after)s::bigint IS NULL OR {{table_key}} > (%(after)s)::bigint)
 ORDER BY {{table_key}}
 LIMIT %(limit)s

-- name: select_pending_coordinates
-- By coordinates first: the large columns of a record are read when it is known how many fit.
SELECT topic, partition, "offset", octet_length(value) + COALESCE(octet_length(key), 0)
  FROM pending_record
 WHERE sent_at IS NULL
   AND {{table_key}} = ANY (%(keys)s::bigint[])
   AND (topic, partition, "offset") > (%(topic)s, %(partition)s, %(offset)s)
 ORDER BY topic, partition, "offset"
 LIMIT %(limit)s

-- name: select_pending
SELECT topic, partition, "offset", key, value, kafka_timestamp, event_id, accepted_at, traceparent
  FROM pending_record
  JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
 USING (topic, partition, "offset")
 WHERE sent_at IS NULL
 ORDER BY topic, partition, "offset"

-- name: reject_pending
WITH gone AS (
    DELETE FROM pending_record
     WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s
    RETURNING topic, partition, "offset", key, value, kafka_timestamp
)
INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
SELECT topic, partition, "offset", %(reason)s, key, value, kafka_timestamp, 'join' FROM gone
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: delete_pending_before
-- Records that wait, and come before one whose event is served. Locked in the order in which others lock them.
WITH superseded AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p
      JOIN unnest(%(keys)s::bigint[], %(versions)s::timestamptz[], %(offsets)s::bigint[])
           AS served ({{key}}, version_at, "offset") ON served.{{key}} = p.{{key}}
     WHERE p.sent_at IS NULL AND (p.version_at, p."offset") < (served.version_at, served."offset")
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
DELETE FROM pending_record p
 USING superseded s
 WHERE p.topic = s.topic AND p.partition = s.partition AND p."offset" = s."offset"

-- name: reject_by_hand
WITH waits_no_longer AS (
    DELETE FROM pending_record WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s
)
INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
VALUES (%(topic)s, %(partition)s, %(offset)s, %(reason)s, %(key)s, %(value)s, %(kafka_timestamp)s, 'repair')
ON CONFLICT (topic, partition, "offset") DO UPDATE SET reason = excluded.reason, rejected_by = excluded.rejected_by

-- name: select_rejected_by_hand
SELECT partition, "offset" FROM reject WHERE topic = %(topic)s AND rejected_by = 'repair'

-- name: select_is_pending
-- The page of a record that is planned may have been sent: the next driver decides that.
SELECT EXISTS (SELECT 1 FROM pending_record
                WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s AND sent_at IS NULL
                  AND page IS NULL)

-- name: mark_pending_sent
-- The rows are locked in the order in which serve locks those it deletes: neither waits for the other in a circle.
WITH sent AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p
      JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
     USING (topic, partition, "offset")
     WHERE p.sent_at IS NULL
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
UPDATE pending_record p
   SET sent_at = now()
  FROM sent
 WHERE p.topic = sent.topic AND p.partition = sent.partition AND p."offset" = sent."offset"

-- name: select_kept_of_partition
-- Records that wait or were rejected, by their offsets.
SELECT "offset", key, kafka_timestamp
  FROM (SELECT topic, partition, "offset", key, kafka_timestamp FROM pending_record
         UNION ALL
        SELECT topic, partition, "offset", key, kafka_timestamp FROM reject) AS kept
 WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" >= %(first)s AND "offset" < %(end)s
 ORDER BY "offset"

-- name: select_former_at
-- Those of former topics. Records that were set aside by two repairs cannot be told apart by their places.
SELECT topic, partition, "offset"
  FROM pending_record
  JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS given (partition, "offset") USING (partition, "offset")
 WHERE starts_with(topic, %(topic)s || '@')
   AND (SELECT count(*)
          FROM ledger_repair r
         WHERE r.consumer = 'join' AND r.topic = %(topic)s AND r.partition = -1 - pending_record.partition
           AND split_part(r.reason, ':', 1) IN ('TopicReplaced', 'LedgerBeyondEnd')) < 2

-- name: plan_pending_page
UPDATE pending_record p
   SET page = %(page)s
  FROM unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
 WHERE p.topic = given.topic AND p.partition = given.partition AND p."offset" = given."offset"

-- name: select_planned_pages
SELECT topic, partition, "offset", page FROM pending_record
 WHERE page IS NOT NULL AND sent_at IS NULL
 ORDER BY topic, partition, "offset"

-- name: delete_pending_from
-- Records of batches that were not committed: they are read again, and saved again if they still wait.
WITH found AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p
      JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS committed (partition, "offset")
        ON committed.partition = p.partition AND p."offset" >= committed."offset"
     WHERE p.topic = %(topic)s AND p.sent_at IS NULL
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
DELETE FROM pending_record p
 USING found
 WHERE p.topic = found.topic AND p.partition = found.partition AND p."offset" = found."offset"

-- name: delete_superseded_pending
-- A record of whose key a newer version was served, or another copy of its event. If that was done just when the record
-- was inserted, nothing else would look at it again. Locked in the order in which others lock them.
WITH superseded AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p JOIN detail_live l ON l.{{key}} = p.{{key}}
     WHERE (l.{{version}}, l.stream_offset) >= (p.version_at, p."offset")
        OR l.{{version}} = p.version_at AND l.event_id = p.event_id
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
DELETE FROM pending_record p
 USING superseded s
 WHERE p.topic = s.topic AND p.partition = s.partition AND p."offset" = s."offset"
