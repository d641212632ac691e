-- A row below the cut whose board is pending in the generation stays: its member came after the cut.
DELETE FROM board_detail_live l
 USING generation g
 WHERE g.id = %(generation_id)s AND l.day = g.day
   AND l.board_offset < (g.cut -> 'board' ->> l.board_partition::text)::bigint
   AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                    WHERE e.generation_id = g.id AND e.kind = 'pending' AND e.board_id = l.{{key}})
