-- Boards whose author has a version that is not newer than the board and came after the day's cut.
INSERT INTO dirty_day AS d (day, cause, count)
SELECT p.day, 'late member', count(DISTINCT f.{{key}})
  FROM day_publication p
  JOIN board_detail_final f ON f.generation_id = p.generation_id
  JOIN late_member m ON m.member_id = f.{member} AND m.version_at <= f.{{version}}
 WHERE m."offset" >= (p.cut -> 'member' ->> m.partition::text)::bigint
 GROUP BY p.day
ON CONFLICT (day, cause) DO UPDATE SET count = d.count + excluded.count, last_at = now()
