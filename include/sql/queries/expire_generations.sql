-- Shown once, and beyond those kept for undo or left behind too long ago; or built, and overtaken by a publication.
UPDATE generation g
   SET status = 'discarded'
 WHERE g.day = %(day)s
   AND (g.status = 'superseded'
        AND ((SELECT count(*) FROM generation k
               WHERE k.day = g.day AND (k.status = 'published' OR (k.status = 'superseded' AND k.id > g.id)))
             >= %(keep)s
             OR COALESCE((SELECT max(p.made_at) FROM publication p
                           WHERE p.day = g.day AND p.from_generation_id = g.id), '-infinity')
                < now() - make_interval(days => %(undo_days)s))
        OR g.status = 'built'
           AND EXISTS (SELECT 1 FROM day_publication p
                        WHERE p.day = g.day AND p.generation_id IS DISTINCT FROM g.base_generation_id))
RETURNING g.id
