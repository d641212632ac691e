INSERT INTO ledger_repair (consumer, topic, partition, from_topic_id, from_offset, to_topic_id, to_offset, reason, repaired_by)
VALUES (%(consumer)s, %(topic)s, %(partition)s, %(from_topic_id)s, %(from_offset)s, %(topic_id)s, %(to_offset)s,
        %(reason)s, %(repaired_by)s)
