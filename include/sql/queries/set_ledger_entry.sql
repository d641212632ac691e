INSERT INTO offset_ledger (consumer, topic, topic_id, partition, next_offset)
VALUES (%(consumer)s, %(topic)s, %(topic_id)s, %(partition)s, %(to_offset)s)
ON CONFLICT (consumer, topic_id, partition) DO UPDATE SET next_offset = excluded.next_offset, updated_at = now()
