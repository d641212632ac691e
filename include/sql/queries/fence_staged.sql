-- What the published generation of the day already covers, or knows better, is not written again: it is set aside, so
-- that an undo has it. A board that was pending there is not covered: its member has come since.
WITH fenced AS (
    SELECT s.*, p.generation_id
      FROM stage_detail s JOIN day_publication p ON p.day = s.day AND p.generation_id IS NOT NULL
     WHERE s.board_offset < (p.cut -> 'board' ->> s.board_partition::text)::bigint
           AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                            WHERE e.generation_id = p.generation_id AND e.kind = 'pending' AND e.board_id = s.{{key}}
                          AND s.member_offset >= COALESCE((p.cut -> 'member' ->> s.member_partition::text)::bigint, 0))
        OR EXISTS (SELECT 1 FROM board_detail_final f
                    WHERE f.generation_id = p.generation_id AND f.{{key}} = s.{{key}}
                      AND (f.{{version}}, f.board_offset) >= (s.{{version}}, s.board_offset))
), kept AS (
    INSERT INTO board_detail_covered AS c ({{served}}, day, deleted, written_at, generation_id)
    SELECT {{served}}, day, deleted, now(), generation_id FROM fenced ORDER BY day, {{key}}
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = now()
     WHERE (excluded.{{version}}, excluded.board_offset) > (c.{{version}}, c.board_offset)
)
DELETE FROM stage_detail s USING fenced f WHERE s.{{key}} = f.{{key}}
