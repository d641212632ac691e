-- The lease of the stream's driver, its progress and its trials.

-- name: select_driver_lease
SELECT query, epoch, driver_id, host, ended_at IS NOT NULL AS has_ended, seen_at,
       heartbeat_age_s(seen_at, clock_timestamp()) AS age_s
  FROM stream_driver d
 CROSS JOIN LATERAL (SELECT COALESCE(max(heartbeat_at), d.taken_at) AS seen_at
                       FROM stream_progress WHERE driver_id = d.driver_id) p
 WHERE query = ANY (%(queries)s)

-- name: end_lease_holders
-- Ends the sessions in whose transaction a driver holds one of these leases.
SELECT DISTINCT holder.application_name, holder.client_addr::text, pg_terminate_backend(holder.pid)
  FROM pg_locks l
  JOIN pg_stat_activity holder USING (pid)
 WHERE l.locktype = 'advisory' AND l.classid = 7203005 AND l.granted
   AND l.objid::bigint = ANY (SELECT hashtext(name) & x'ffffffff'::bigint FROM unnest(%(queries)s) AS name)
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND holder.pid <> pg_backend_pid() AND holder.usename = current_user

-- name: hold_driver_lease
-- The lock lets a later driver take the lease only after this transaction. Each query has its own, so that a driver that
-- takes over waits for the transactions of its own queries alone.
SELECT pg_advisory_xact_lock_shared(7203005, hashtext(name)) FROM unnest(%(queries)s) AS name;
SELECT query, epoch, driver_id, host, current_timeline() FROM stream_driver WHERE query = ANY (%(queries)s) FOR SHARE

-- name: end_driver_lease
UPDATE stream_driver SET ended_at = now()
 WHERE query = ANY (%(queries)s) AND epoch = %(epoch)s AND driver_id = %(driver_id)s

-- name: lock_driver_leases
-- Transactions of the older driver that begin from now on queue behind this one: else it could wait for ever, because
-- FOR SHARE joins those that share the row's lock already.
SELECT pg_advisory_xact_lock(7203005, hashtext(name)) FROM unnest(%(queries)s) AS name

-- name: take_driver_lease
-- `after`: only those that are still of these epochs; null: whoever has them. The epoch is later than that of any driver.
INSERT INTO stream_driver (query, epoch, driver_id, host, timeline)
SELECT wanted.query, (SELECT coalesce(max(epoch), 0) + 1 FROM stream_driver), %(driver_id)s, %(host)s, current_timeline()
  FROM unnest(%(queries)s, %(after)s::bigint[]) AS wanted (query, after)
  LEFT JOIN stream_driver d ON d.query = wanted.query
 WHERE wanted.after IS NULL OR coalesce(d.epoch, 0) = wanted.after
ON CONFLICT (query) DO UPDATE
   SET epoch = excluded.epoch, driver_id = excluded.driver_id, host = excluded.host, timeline = excluded.timeline,
       taken_at = now(), ended_at = NULL
RETURNING epoch, timeline

-- name: save_progress
-- One row per query. A watermark stays true, also when the next driver does not know one yet; but one from the future
-- was written while the server's clock was ahead.
INSERT INTO stream_progress AS p
    (query, driver_id, epoch, batch_id, input_rows, duration_ms, total_rows, offsets, input_rate, processed_rate,
     lag_records, lag_s, phases, metrics, waiting_for, watermark)
VALUES %s
ON CONFLICT (query) DO UPDATE
   SET driver_id = excluded.driver_id, epoch = excluded.epoch, batch_id = excluded.batch_id,
       input_rows = excluded.input_rows, duration_ms = excluded.duration_ms, total_rows = excluded.total_rows,
       offsets = COALESCE(excluded.offsets, p.offsets), input_rate = excluded.input_rate,
       processed_rate = excluded.processed_rate, lag_records = excluded.lag_records, lag_s = excluded.lag_s,
       phases = excluded.phases, metrics = excluded.metrics, waiting_for = excluded.waiting_for, heartbeat_at = now(),
       watermark = GREATEST(excluded.watermark, CASE WHEN p.watermark <= now() THEN p.watermark END)

-- name: save_watermark
-- Of query join: one a second for half a minute, one each 15 s for ten minutes, one each ten minutes for six hours. None
-- from the future, see above.
INSERT INTO stream_watermark (at, watermark)
SELECT now(), watermark FROM stream_progress WHERE query = 'join' AND watermark IS NOT NULL
ON CONFLICT DO NOTHING;
DELETE FROM stream_watermark WHERE at > now();
DELETE FROM stream_watermark w
 USING (SELECT at, row_number() OVER (PARTITION BY apart, date_bin(apart, at, 'epoch') ORDER BY at) AS number
          FROM (SELECT at, CASE WHEN at < now() - interval '10 minutes' THEN interval '10 minutes'
                                ELSE interval '15 seconds' END AS apart
                  FROM stream_watermark WHERE at < now() - interval '30 seconds') old) old
 WHERE w.at = old.at AND (old.number > 1 OR w.at < now() - interval '6 hours')

-- name: count_pending
SELECT count(DISTINCT {{key}}) AS count, extract(epoch FROM now() - min(since))::float AS oldest_s FROM waiting_record

-- name: select_progress
SELECT query, driver_id, epoch, batch_id, input_rows, duration_ms, total_rows, offsets, input_rate, processed_rate,
       lag_records, lag_s, phases, metrics - 'clock_ahead_s' AS metrics, waiting_for,
       heartbeat_age_s(heartbeat_at, now()) AS age_s, (metrics ->> 'clock_ahead_s')::float AS clock_ahead_s
  FROM stream_progress
 ORDER BY query

-- name: select_stream_trial
SELECT at, size, failures, rejected, reason FROM stream_trial WHERE consumer = %(consumer)s AND topic_id = %(topic_id)s

-- name: save_stream_trial
INSERT INTO stream_trial (consumer, topic_id, at, size, failures, rejected, reason)
VALUES (%(consumer)s, %(topic_id)s, %(at)s, %(size)s, %(failures)s, %(rejected)s, %(reason)s)
ON CONFLICT (consumer, topic_id) DO UPDATE
   SET at = excluded.at, size = excluded.size, failures = excluded.failures, rejected = excluded.rejected,
       reason = excluded.reason, tried_at = now()
