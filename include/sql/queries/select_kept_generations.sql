-- Generations that a day shows or may show yet: up to where of the members' topic each was built, its newest row, and
-- whether late versions were looked for from there on.
SELECT g.id, g.day, COALESCE(g.member_ends, '{}'), g.newest_version_at, s.generation_id IS NOT NULL, p.generation_id IS NOT NULL
  FROM generation g
  LEFT JOIN searched_generation s ON s.generation_id = g.id
  LEFT JOIN day_publication p ON p.generation_id = g.id
 WHERE g.status IN ('building', 'built', 'published', 'superseded')
