-- Compare and set: no row means that someone else advanced it, and this transaction must not commit.
UPDATE offset_ledger
   SET next_offset = %(next_offset)s, updated_at = now()
 WHERE consumer = %(consumer)s AND topic_id = %(topic_id)s AND partition = %(partition)s
   AND next_offset = %(expected)s
