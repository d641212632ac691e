INSERT INTO stream_trial (consumer, topic_id, at, size, failures, rejected, reason)
VALUES (%(consumer)s, %(topic_id)s, %(at)s, %(size)s, %(failures)s, %(rejected)s, %(reason)s)
ON CONFLICT (consumer, topic_id) DO UPDATE
   SET at = excluded.at, size = excluded.size, failures = excluded.failures, rejected = excluded.rejected,
       reason = excluded.reason, tried_at = now()
