-- A published day still shows a board whose newer version, from a record that the day was not built from, says another
-- day: only its rebuild takes it out.
SELECT count(*)
  FROM board_detail_live l
  JOIN board_detail_final f ON f.{{key}} = l.{{key}}
 WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
   AND l.{{key}} BETWEEN %(first_key)s AND %(last_key)s AND l.day <> %(day)s
   AND (l.{{version}}, l.board_offset) > (f.{{version}}, f.board_offset)
   AND l.board_offset >= COALESCE((%(board_ends)s::bigint[])[l.board_partition + 1], 0)
