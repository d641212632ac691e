-- Tables whose generation was given up, or is not known. Of a day, or of all. A half detached one first: it is in the
-- way of the others.
SELECT c.relname, i.inhrelid IS NOT NULL AS is_attached, COALESCE(i.inhdetachpending, false) AS is_pending
  FROM pg_class c
  JOIN pg_class parent ON parent.oid = 'board_detail_final'::regclass AND parent.relnamespace = c.relnamespace
  LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = parent.oid
  LEFT JOIN generation g ON c.relname = 'board_detail_final_g' || g.id
 WHERE c.relkind = 'r' AND c.relname ~ '^board_detail_final_g[0-9]+$'
   AND (g.id IS NULL OR g.status = 'discarded')
   AND (%(day)s::date IS NULL OR g.day = %(day)s)
 ORDER BY is_pending DESC, c.relname
