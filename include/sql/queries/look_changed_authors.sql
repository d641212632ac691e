SELECT c.board_id, c.shown ->> 'nickname' AS shown, c.rebuilt ->> 'nickname' AS rebuilt
  FROM board_detail_correction c
  JOIN day_publication p ON p.generation_id = c.generation_id
 WHERE p.day = %(day)s AND c.class = 'member_version_changed' AND c.board_id = ANY (%(board_ids)s::bigint[])
 ORDER BY c.board_id
