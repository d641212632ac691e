DELETE FROM board_detail_live l
 USING generation g
 WHERE g.id = %(generation_id)s AND l.day = g.day
   AND l.board_offset < (g.cut -> 'board' ->> l.board_partition::text)::bigint
