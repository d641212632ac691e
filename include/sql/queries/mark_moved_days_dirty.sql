-- A published day still shows a board whose newer version says another day: only its rebuild takes it out. The count is
-- what stands there now, so looking twice counts once.
INSERT INTO dirty_day AS d (day, cause, count)
SELECT p.day, 'moved board', count(*)
  FROM day_publication p
  JOIN board_detail_final f ON f.generation_id = p.generation_id
  JOIN board_detail_live l ON l.{{key}} = f.{{key}} AND l.day <> p.day AND NOT l.deleted
 WHERE (l.{{version}}, l.board_offset) > (f.{{version}}, f.board_offset)
 GROUP BY p.day
ON CONFLICT (day, cause) DO UPDATE SET count = excluded.count, last_at = now()
 WHERE d.count <> excluded.count
