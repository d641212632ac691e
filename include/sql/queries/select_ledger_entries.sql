SELECT topic_id, partition, next_offset, updated_at
  FROM offset_ledger
 WHERE consumer = %(consumer)s AND topic = %(topic)s
 ORDER BY updated_at DESC, topic_id, partition
