-- The offset ledger: how far each consumer is, committed with its data.

-- name: forget_sent_pending
-- Output records that were sent may be among the lost ones; sending a record twice does no harm.
UPDATE pending_record SET sent_at = NULL, page = NULL WHERE sent_at IS NOT NULL

-- name: select_repaired_at
-- When a person last moved the entry of each partition, in µs since 1970.
SELECT partition, (EXTRACT(EPOCH FROM max(repaired_at)) * 1000000)::bigint
  FROM ledger_repair
 WHERE consumer = %(consumer)s
 GROUP BY partition

-- name: note_delivery
INSERT INTO stream_delivery (delivery)
SELECT %(delivery)s
 WHERE %(delivery)s IS DISTINCT FROM (SELECT delivery FROM stream_delivery ORDER BY since DESC LIMIT 1)

-- name: select_last_delivery
SELECT delivery FROM stream_delivery ORDER BY since DESC LIMIT 1

-- name: set_aside_pending
-- Of a topic that was made again, or of a partition that lost its last records. No record has these coordinates; their
-- output records get the same.
UPDATE pending_record
   SET topic = topic || '@' || %(former)s, partition = -1 - partition, "offset" = ordered_offset("offset", NULL)
 WHERE topic = %(topic)s
   AND (%(lost_from)s::bigint IS NULL OR partition = %(partition)s AND "offset" >= %(lost_from)s)

-- name: set_aside_rejects
-- Of the same records: others get their places.
UPDATE reject
   SET topic = topic || '@' || %(former)s
 WHERE topic = %(topic)s
   AND (%(lost_from)s::bigint IS NULL OR partition = %(partition)s AND "offset" >= %(lost_from)s)

-- name: set_ledger_entry
INSERT INTO offset_ledger (consumer, topic, topic_id, partition, next_offset)
VALUES (%(consumer)s, %(topic)s, %(topic_id)s, %(partition)s, %(to_offset)s)
ON CONFLICT (consumer, topic_id, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_at = now()

-- name: insert_ledger_repair
INSERT INTO ledger_repair (consumer, topic, partition, from_topic_id, from_offset, to_topic_id, to_offset, reason, repaired_by)
VALUES (%(consumer)s, %(topic)s, %(partition)s, %(from_topic_id)s, %(from_offset)s, %(topic_id)s, %(to_offset)s,
        %(reason)s, %(repaired_by)s)
RETURNING id

-- name: delete_replaced_ledger
DELETE FROM offset_ledger WHERE consumer = %(consumer)s AND topic = %(topic)s AND topic_id <> %(topic_id)s

-- name: open_ledger
INSERT INTO offset_ledger (consumer, topic, topic_id, partition, next_offset)
VALUES (%(consumer)s, %(topic)s, %(topic_id)s, %(partition)s, %(next_offset)s)
ON CONFLICT (consumer, topic_id, partition) DO NOTHING

-- name: advance_ledger
-- Compare and set: fewer rows than partitions means that someone else advanced one, and this transaction must not commit.
UPDATE offset_ledger l
   SET next_offset = moved.next_offset, updated_at = now()
  FROM unnest(%(partitions)s::int[], %(expected)s::bigint[], %(next_offsets)s::bigint[])
       AS moved (partition, expected, next_offset)
 WHERE l.consumer = %(consumer)s AND l.topic_id = %(topic_id)s AND l.partition = moved.partition
   AND l.next_offset = moved.expected

-- name: select_ledger_entries
SELECT topic_id, partition, next_offset, updated_at
  FROM offset_ledger
 WHERE consumer = %(consumer)s AND topic = %(topic)s
 ORDER BY updated_at DESC, topic_id, partition
