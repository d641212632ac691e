SELECT driver_id, extract(epoch FROM clock_timestamp() - heartbeat_at)::float AS age_s
  FROM stream_progress
 ORDER BY heartbeat_at DESC
 LIMIT 1
