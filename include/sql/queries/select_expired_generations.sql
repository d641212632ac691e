-- Published once and beyond those kept for undo; or built, and overtaken by a publication.
SELECT id FROM (
    SELECT id, status, row_number() OVER (ORDER BY id DESC) AS nth
      FROM generation
     WHERE day = %(day)s AND status IN ('published', 'superseded')) kept
 WHERE nth > %(keep)s AND status = 'superseded'
UNION ALL
SELECT g.id
  FROM generation g JOIN day_publication p ON p.day = g.day
 WHERE g.day = %(day)s AND g.status = 'built' AND g.base_generation_id IS DISTINCT FROM p.generation_id
