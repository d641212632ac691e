WITH gone AS (
    DELETE FROM pending_board
     WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s
    RETURNING topic, partition, "offset", key, value, kafka_timestamp
)
INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
SELECT topic, partition, "offset", %(reason)s, key, value, kafka_timestamp, 'join' FROM gone
ON CONFLICT (topic, partition, "offset") DO NOTHING
