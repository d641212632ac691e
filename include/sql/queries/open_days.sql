INSERT INTO day_publication (day)
SELECT date '1970-01-01' + number AS day FROM unnest(%(days)s::int[]) AS number ORDER BY day
ON CONFLICT (day) DO NOTHING
