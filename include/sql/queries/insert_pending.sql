INSERT INTO pending_board
    (topic, partition, "offset", board_id, member_id, day, key, value, kafka_timestamp, event_id, accepted_at, version_at)
VALUES %s
ON CONFLICT (topic, partition, "offset") DO NOTHING
