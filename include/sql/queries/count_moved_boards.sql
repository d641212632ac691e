-- Boards that one day shows although another one knows a newer version of them, from a record that the first was not
-- built from: a rebuild takes them out. The days are given as values, so that no table of another day is locked.
SELECT count(DISTINCT o.{{key}})
  FROM (SELECT {{key}}, {{version}} AS version_at, board_partition, board_offset
          FROM board_detail_final
         WHERE day = %(newer_day)s AND generation_id = %(newer_id)s AND {{key}} BETWEEN %(first_key)s AND %(last_key)s
         UNION ALL
        SELECT board_id, version_at, board_partition, board_offset
          FROM generation_excluded
         WHERE generation_id = %(newer_id)s AND version_at IS NOT NULL
           AND board_id BETWEEN %(first_key)s AND %(last_key)s) n
  JOIN board_detail_final o ON o.{{key}} = n.{{key}}
 WHERE o.day = %(day)s AND o.generation_id = %(generation_id)s
   AND (n.version_at, n.board_offset) > (o.{{version}}, o.board_offset)
   AND n.board_offset >= COALESCE((%(board_ends)s::bigint[])[n.board_partition + 1], 0)
