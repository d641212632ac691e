-- Boards that wait for their member, and records rejected by hand.

-- name: insert_rejects
INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
VALUES %s
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: insert_pending
INSERT INTO pending_record
    (topic, partition, "offset", {{key}}, {{table_key}}, day, key, value, kafka_timestamp, event_id, accepted_at, version_at,
     traceparent)
VALUES %s
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: select_table_keys_waited_for
SELECT DISTINCT {{table_key}}
  FROM pending_record
 WHERE sent_at IS NULL
   AND (%(after)s::bigint IS NULL OR {{table_key}} > %(after)s::bigint)
 ORDER BY {{table_key}}
 LIMIT %(limit)s

-- name: select_pending_coordinates
-- By id first: what a board is large in is read when it is known how many fit.
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
SELECT EXISTS (SELECT 1 FROM pending_record
                WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s AND sent_at IS NULL)

-- name: mark_pending_sent
-- The rows are locked in the order in which serve locks those it deletes: neither waits for the other in a circle.
WITH sent AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p
      JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
     USING (topic, partition, "offset")
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
UPDATE pending_record p
   SET sent_at = now()
  FROM sent
 WHERE p.topic = sent.topic AND p.partition = sent.partition AND p."offset" = sent."offset"

-- name: delete_superseded_pending
-- A board that began to wait just after its newer version was served: nothing else would look at it again. Locked in the
-- order in which others lock them.
WITH superseded AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p JOIN detail_live l ON l.{{key}} = p.{{key}}
     WHERE (l.{{version}}, l.stream_offset) >= (p.version_at, p."offset")
     ORDER BY p.topic, p.partition, p."offset"
       FOR UPDATE OF p
)
DELETE FROM pending_record p
 USING superseded s
 WHERE p.topic = s.topic AND p.partition = s.partition AND p."offset" = s."offset"
