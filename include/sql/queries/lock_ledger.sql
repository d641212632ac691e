SELECT partition, next_offset
  FROM offset_ledger
 WHERE consumer = %(consumer)s AND topic_id = %(topic_id)s
 ORDER BY partition
   FOR UPDATE
