-- Compare and set: fewer rows than partitions means that someone else advanced one, and this transaction must not commit.
UPDATE offset_ledger l
   SET next_offset = moved.next_offset, updated_at = now()
  FROM unnest(%(partitions)s::int[], %(expected)s::bigint[], %(next_offsets)s::bigint[])
       AS moved (partition, expected, next_offset)
 WHERE l.consumer = %(consumer)s AND l.topic_id = %(topic_id)s AND l.partition = moved.partition
   AND l.next_offset = moved.expected
