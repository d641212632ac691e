SELECT query, driver_id, epoch, batch_id, input_rows, duration_ms, total_rows, offsets, input_rate, processed_rate,
       lag_records, lag_s, phases, figures, waiting_for, extract(epoch FROM now() - heartbeat_at)::float AS age_s
  FROM stream_progress
 ORDER BY query
