-- Generations, runs and covered rows that nobody needs any more.

-- name: expire_generations
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

-- name: forget_covered
-- Deletions stay: a late replay of an older version would bring the row back.
DELETE FROM detail_covered
 WHERE NOT deleted AND day = %(day)s AND covered_at < now() - make_interval(days => %(undo_days)s)

-- name: forget_covered_pending
-- Pending records that the day has covered since before then: only an undo would need them. Locked in the
-- order in which others lock them.
WITH gone AS (
    SELECT w.topic, w.partition, w."offset"
      FROM pending_record w JOIN day_publication p ON p.day = w.day
     WHERE w.day = %(day)s AND w.covered_by IS NOT NULL AND p.moved_at < now() - make_interval(days => %(undo_days)s)
     ORDER BY w.topic, w.partition, w."offset"
       FOR UPDATE OF w
)
DELETE FROM pending_record w
 USING gone g
 WHERE w.topic = g.topic AND w.partition = g.partition AND w."offset" = g."offset"

-- name: save_undoable_since
-- Live rows and pending records covered before then are gone, so what the day showed before then cannot be shown again.
UPDATE day_publication SET undoable_since = now() - make_interval(days => %(undo_days)s) WHERE day = %(day)s

-- name: select_abandoned
-- Builds that nobody finished, and builds that nobody published for so long.
SELECT id, day, status FROM generation
 WHERE status = 'building' OR (status = 'built' AND built_at < now() - make_interval(hours => %(hours)s))
 ORDER BY id

-- name: select_days_to_prune
-- Covered deletions are kept: a day that has nothing else is left alone.
SELECT d.day
  FROM day_publication d
 WHERE EXISTS (SELECT 1 FROM generation g WHERE g.day = d.day AND g.status IN ('superseded', 'built'))
    OR EXISTS (SELECT 1 FROM detail_covered c WHERE c.day = d.day AND NOT c.deleted)
    OR d.generation_id IS NOT NULL AND EXISTS (SELECT 1 FROM detail_live l WHERE l.day = d.day)
    OR EXISTS (SELECT 1 FROM pending_record w WHERE w.day = d.day AND w.covered_by IS NOT NULL)
 ORDER BY d.day

-- name: expire_corrections
-- Of builds that were given up: differences hold values of people.
DELETE FROM detail_correction c
 USING generation g
 WHERE g.id = c.generation_id AND g.status = 'discarded'
   AND g.created_at < now() - make_interval(days => %(days)s)

-- name: expire_runs
-- Builds that were given up and that no day ever showed; what belongs to them goes with them.
DELETE FROM generation g
 WHERE g.status = 'discarded' AND g.created_at < now() - make_interval(days => %(days)s)
   AND to_regclass(format('generations.detail_final_g%%s', g.id)) IS NULL
   AND NOT EXISTS (SELECT 1 FROM publication p WHERE p.from_generation_id = g.id)
   AND NOT EXISTS (SELECT 1 FROM publication p WHERE p.to_generation_id = g.id)

-- name: discard_generation
UPDATE generation SET status = 'discarded' WHERE id = %(generation_id)s AND status = %(status)s
