INSERT INTO stream_progress AS p (query, driver_id, batch_id, input_rows, duration_ms, total_rows, offsets)
VALUES (%(query)s, %(driver_id)s, %(batch_id)s, %(input_rows)s, %(duration_ms)s, %(total_rows)s, %(offsets)s)
ON CONFLICT (query) DO UPDATE
   SET driver_id = excluded.driver_id, batch_id = excluded.batch_id, input_rows = excluded.input_rows,
       duration_ms = excluded.duration_ms, total_rows = excluded.total_rows,
       offsets = COALESCE(excluded.offsets, p.offsets), heartbeat_at = now()
