-- A row when the key is new, or older than the window; none when it is in use. Another transaction that claimed the same
-- key is waited for: after its rollback the key is new again.
INSERT INTO change_key AS known (scope, key, fingerprint, topic, made_at)
VALUES (%(scope)s, %(key)s, %(fingerprint)s, %(topic)s, clock_timestamp())
ON CONFLICT (scope, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, topic = excluded.topic, made_at = excluded.made_at,
       row_id = NULL, created_at = NULL, modified_at = NULL, value = NULL
 WHERE known.made_at < clock_timestamp() - make_interval(secs => %(window_s)s)
RETURNING scope
