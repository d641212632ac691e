-- Of one published day: what its generation covers, or knows in the same version or a newer one, be it as a row or as a
-- board that was deleted or has moved, is not written again.
-- It is set aside, so that an undo has it. The day is given as a value, so that no table of another day is locked.
WITH fenced AS (
    SELECT s.*
      FROM stage_detail s JOIN day_publication p ON p.day = s.day
     WHERE s.day = date '1970-01-01' + %(day_number)s
       AND (is_covered(p.generation_id, p.board_ends, p.member_ends, s.{{key}}, s.board_partition, s.board_offset,
                       s.member_partition, s.member_offset)
            OR EXISTS (SELECT 1 FROM board_detail_final f
                        WHERE f.day = date '1970-01-01' + %(day_number)s AND f.generation_id = %(generation_id)s
                          AND f.{{key}} = s.{{key}}
                          AND (f.{{version}}, ordered_offset(f.board_offset, p.board_ends))
                              >= (s.{{version}}, s.board_offset))
            OR EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = %(generation_id)s AND e.board_id = s.{{key}}
                          AND (e.version_at, ordered_offset(e.board_offset, p.board_ends))
                              >= (s.{{version}}, s.board_offset)))
), superseded AS (
    -- An older row on top of the generation is no news either. It may be there when topic board was made again.
    DELETE FROM board_detail_live l USING fenced f
     WHERE l.day = date '1970-01-01' + %(day_number)s AND l.{{key}} = f.{{key}}
       AND (l.{{version}}, l.board_offset) < (f.{{version}}, f.board_offset)
), kept AS (
    INSERT INTO board_detail_covered AS c ({{served}}, day, deleted, written_at, generation_id)
    SELECT {{served}}, day, deleted, now(), %(generation_id)s FROM fenced ORDER BY {{key}}
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = now()
     WHERE (excluded.{{version}}, excluded.board_offset) > (c.{{version}}, c.board_offset)
)
DELETE FROM stage_detail s USING fenced f WHERE s.{{key}} = f.{{key}}
