-- Tables whose generation was given up, or is not known. Of a day, or of all; attached ones last.
SELECT substring(c.relname FROM '[0-9]+$')::bigint, i.inhrelid IS NOT NULL AS is_attached
  FROM pg_class c
  LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = 'board_detail_final'::regclass
  LEFT JOIN generation g ON c.relname = 'board_detail_final_g' || g.id
 WHERE c.relnamespace = 'generations'::regnamespace AND c.relkind = 'r'
   AND c.relname ~ '^board_detail_final_g[0-9]{1,18}$'
   AND (g.id IS NULL OR g.status = 'discarded')
   AND (%(day)s::date IS NULL OR g.day = %(day)s)
 ORDER BY is_attached, 1
