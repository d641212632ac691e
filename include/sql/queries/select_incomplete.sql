-- Attached tables of generations that lack the index of members, the CHECK of their bounds, or the check of that. A
-- generation without rows has no bounds.
SELECT *
  FROM (SELECT g.id,
               NOT EXISTS (SELECT 1 FROM pg_index x
                             JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
                            WHERE x.indrelid = c.oid AND a.attname = '{{table_key}}') AS index_members,
               b.is_valid IS NULL AND g.row_count > 0 AS add_bounds,
               NOT COALESCE(b.is_valid, true) AS validate_bounds
          FROM pg_inherits h
          JOIN pg_class c ON c.oid = h.inhrelid
          JOIN generation g ON c.relname = 'board_detail_final_g' || g.id
          LEFT JOIN LATERAL (SELECT bool_or(k.convalidated) AS is_valid FROM pg_constraint k
                               JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
                              WHERE k.conrelid = c.oid AND k.contype = 'c' AND a.attname = '{{key}}') b ON true
         WHERE h.inhparent = 'board_detail_final'::regclass AND NOT h.inhdetachpending
           AND g.status <> 'discarded') found
 WHERE index_members OR add_bounds OR validate_bounds
 ORDER BY id DESC
