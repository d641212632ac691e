-- Covered deletions are kept: a day that has nothing else is left alone.
SELECT d.day
  FROM day_publication d
 WHERE EXISTS (SELECT 1 FROM generation g WHERE g.day = d.day AND g.status IN ('superseded', 'built'))
    OR EXISTS (SELECT 1 FROM board_detail_covered c WHERE c.day = d.day AND NOT c.deleted)
    OR d.generation_id IS NOT NULL AND EXISTS (SELECT 1 FROM board_detail_live l WHERE l.day = d.day)
 ORDER BY d.day
