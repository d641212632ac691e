-- Boards of the day whose author has a version that is not newer than the board and came after the day's cut.
SELECT count(DISTINCT f.{{key}})
  FROM board_detail_final f
  JOIN late_member m ON m.member_id = f.{member} AND m.version_at <= f.{{version}}
 WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
   AND m."offset" >= COALESCE((%(member_ends)s::bigint[])[m.partition + 1], 0)
