-- `after`: only when the lease is still of that epoch; null: whoever has it.
INSERT INTO stream_driver AS d (application, epoch, driver_id, host)
VALUES (%(application)s, 1, %(driver_id)s, %(host)s)
ON CONFLICT (application) DO UPDATE
   SET epoch = d.epoch + 1, driver_id = excluded.driver_id, host = excluded.host, taken_at = now(), ended_at = NULL
 WHERE %(after)s::bigint IS NULL OR d.epoch = %(after)s
RETURNING epoch
