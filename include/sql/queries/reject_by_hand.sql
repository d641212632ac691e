WITH waits_no_longer AS (
    DELETE FROM pending_board WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s
)
INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
VALUES (%(topic)s, %(partition)s, %(offset)s, %(reason)s, %(key)s, %(value)s, %(kafka_timestamp)s, 'repair')
ON CONFLICT (topic, partition, "offset") DO UPDATE SET reason = excluded.reason, rejected_by = excluded.rejected_by
