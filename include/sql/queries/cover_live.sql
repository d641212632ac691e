-- A row below the cut whose board is pending in the generation stays: its member came after the cut. What is set aside
-- already is newer, and stays. Not asked for by NOT EXISTS: such a plan may read the table while it grows.
WITH covered AS (
    DELETE FROM board_detail_live l
     USING generation g
     WHERE g.id = %(generation_id)s AND l.day = g.day
       AND l.board_offset < (g.cut -> 'board' ->> l.board_partition::text)::bigint
       AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = g.id AND e.kind = 'pending' AND e.board_id = l.{{key}}
                          AND l.member_offset >= COALESCE((g.cut -> 'member' ->> l.member_partition::text)::bigint, 0))
    RETURNING l.*
), kept AS (
    INSERT INTO board_detail_covered ({{served}}, day, deleted, written_at, generation_id)
    SELECT {{served}}, day, deleted, written_at, %(generation_id)s FROM covered
    ON CONFLICT (day, {{key}}) DO NOTHING
)
SELECT count(*) FROM covered
