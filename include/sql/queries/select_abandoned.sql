-- Builds that nobody finished, and builds that nobody published for so long.
SELECT id, day, status FROM generation
 WHERE status = 'building' OR (status = 'built' AND built_at < now() - make_interval(hours => %(hours)s))
 ORDER BY id
