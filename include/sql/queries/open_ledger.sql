INSERT INTO offset_ledger (consumer, topic, topic_id, partition, next_offset)
VALUES (%(consumer)s, %(topic)s, %(topic_id)s, %(partition)s, %(next_offset)s)
ON CONFLICT (consumer, topic_id, partition) DO NOTHING
