SELECT topic, partition, "offset", key, value, kafka_timestamp, event_id, accepted_at
  FROM pending_board
  JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS given (topic, partition, "offset")
 USING (topic, partition, "offset")
 WHERE sent_at IS NULL
 ORDER BY topic, partition, "offset"
