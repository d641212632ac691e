-- One row a query.
INSERT INTO stream_progress AS p
    (query, driver_id, epoch, batch_id, input_rows, duration_ms, total_rows, offsets, input_rate, processed_rate,
     lag_records, lag_s, phases, figures, waiting_for)
VALUES %s
ON CONFLICT (query) DO UPDATE
   SET driver_id = excluded.driver_id, epoch = excluded.epoch, batch_id = excluded.batch_id,
       input_rows = excluded.input_rows, duration_ms = excluded.duration_ms, total_rows = excluded.total_rows,
       offsets = COALESCE(excluded.offsets, p.offsets), input_rate = excluded.input_rate,
       processed_rate = excluded.processed_rate, lag_records = excluded.lag_records, lag_s = excluded.lag_s,
       phases = excluded.phases, figures = excluded.figures, waiting_for = excluded.waiting_for, heartbeat_at = now()
