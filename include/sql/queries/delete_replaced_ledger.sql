DELETE FROM offset_ledger WHERE consumer = %(consumer)s AND topic = %(topic)s AND topic_id <> %(topic_id)s
