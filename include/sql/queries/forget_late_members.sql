-- Versions that every kept generation has, or that are newer than all its rows.
DELETE FROM late_member m
 WHERE NOT EXISTS (
       SELECT 1 FROM generation g
        WHERE g.status IN ('building', 'built', 'published', 'superseded')
          AND m."offset" >= COALESCE(g.member_ends[m.partition + 1], 0)
          AND m.version_at <= COALESCE(g.newest_version_at, 'infinity'))
