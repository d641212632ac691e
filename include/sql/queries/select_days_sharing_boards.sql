-- Other published days that may show a board which this day shows, or knows as deleted or moved, and the other way
-- round. Of rows this day's table alone is read, at most one key for each other day: the order leads over its index.
SELECT p.day
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE p.day <> %(day)s
   AND ((SELECT true FROM board_detail_final f
          WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
            AND f.{{key}} BETWEEN g.first_key AND g.last_key ORDER BY f.{{key}} LIMIT 1)
        OR (SELECT true FROM generation_excluded e
             WHERE e.generation_id = %(generation_id)s AND e.version_at IS NOT NULL
               AND e.board_id BETWEEN g.first_key AND g.last_key ORDER BY e.board_id LIMIT 1)
        OR (SELECT true FROM generation_excluded e
             WHERE e.generation_id = g.id AND e.version_at IS NOT NULL
               AND e.board_id BETWEEN %(first_key)s AND %(last_key)s ORDER BY e.board_id LIMIT 1))
