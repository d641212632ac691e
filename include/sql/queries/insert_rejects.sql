INSERT INTO reject (topic, partition, "offset", reason, key, value, kafka_timestamp, rejected_by)
VALUES %s
ON CONFLICT (topic, partition, "offset") DO NOTHING
