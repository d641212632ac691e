-- Boards that may read otherwise and that the day does not show; no more than that many.
SELECT c.board_id
  FROM changed_board c
 WHERE NOT EXISTS (SELECT 1 FROM board_detail s WHERE s.day = %(day)s AND s.{{key}} = c.board_id)
 ORDER BY c.board_id
 LIMIT %(limit)s
