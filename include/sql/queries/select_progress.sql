SELECT query, driver_id, batch_id, offsets, extract(epoch FROM now() - heartbeat_at)::float AS age_s FROM stream_progress
