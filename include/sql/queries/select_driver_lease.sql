SELECT d.epoch, d.driver_id, d.host, d.ended_at IS NOT NULL AS has_ended, greatest(d.taken_at, p.heartbeat_at) AS seen_at,
       extract(epoch FROM clock_timestamp() - greatest(d.taken_at, p.heartbeat_at))::float AS age_s
  FROM stream_driver d
  LEFT JOIN LATERAL (SELECT max(heartbeat_at) AS heartbeat_at FROM stream_progress WHERE driver_id = d.driver_id) p ON true
 WHERE d.application = %(application)s
