-- a small batch at a time; what another gateway deletes at the moment is left to it
DELETE FROM change_key
WHERE (scope, key) IN (
    SELECT scope, key FROM change_key
    WHERE made_at < clock_timestamp() - make_interval(secs => %(window_s)s)
    ORDER BY made_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
