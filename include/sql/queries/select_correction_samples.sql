SELECT c.class, c.board_id, c.shown, c.rebuilt
  FROM unnest(%(classes)s::text[]) AS wanted (class)
 CROSS JOIN LATERAL (SELECT class, board_id, shown, rebuilt
                       FROM board_detail_correction
                      WHERE generation_id = %(generation_id)s AND class = wanted.class
                      ORDER BY board_id LIMIT %(limit)s) c
 ORDER BY c.class, c.board_id
