-- What the published generation of the day already covers, or knows better, is not written again. A board that was
-- pending there is not covered: its member has come since.
DELETE FROM stage_detail s
 USING day_publication p
 WHERE p.day = s.day AND p.generation_id IS NOT NULL
   AND (s.board_offset < (p.cut -> 'board' ->> s.board_partition::text)::bigint
        AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                         WHERE e.generation_id = p.generation_id AND e.kind = 'pending' AND e.board_id = s.{{key}})
        OR EXISTS (SELECT 1 FROM board_detail_final f
                    WHERE f.generation_id = p.generation_id AND f.{{key}} = s.{{key}}
                      AND (f.{{version}}, f.board_offset) >= (s.{{version}}, s.board_offset)))
