INSERT INTO stream_driver AS d (application, epoch, driver_id, host)
VALUES (%(application)s, 1, %(driver_id)s, %(host)s)
ON CONFLICT (application) DO UPDATE
   SET epoch = d.epoch + 1, driver_id = excluded.driver_id, host = excluded.host, taken_at = now()
RETURNING epoch
