-- The counts are those of now, so looking twice counts once.
INSERT INTO dirty_day AS d (day, cause, count)
SELECT day, %(cause)s, found FROM unnest(%(days)s::date[], %(counts)s::bigint[]) AS marked (day, found) ORDER BY day
ON CONFLICT (day, cause) DO UPDATE SET count = excluded.count, last_at = now()
 WHERE d.count < excluded.count
