-- Live rows that the generation does not cover come back as they were, unless something newer stands there, or the
-- generation has the board as new. Without a generation, which is 0 (see compare_rows), all of them do.
WITH returning_rows AS (
    DELETE FROM board_detail_covered c
     WHERE c.day = %(day)s
       AND NOT EXISTS (
           SELECT 1 FROM generation g
            WHERE g.id = %(generation_id)s
              AND is_covered(g.id, g.board_ends, g.member_ends, c.{{key}}, c.board_partition, c.board_offset,
                             c.member_partition, c.member_offset))
       AND NOT EXISTS (
           SELECT 1 FROM board_detail_final f
            WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(generation_id)s, 0) AND f.{{key}} = c.{{key}}
              AND (f.{{version}}, ordered_offset(f.board_offset, (SELECT board_ends FROM generation WHERE id = %(generation_id)s)))
                  >= (c.{{version}}, c.board_offset))
       AND NOT EXISTS (
           SELECT 1 FROM generation_excluded e
            WHERE e.generation_id = %(generation_id)s AND e.board_id = c.{{key}}
              AND (e.version_at, ordered_offset(e.board_offset, (SELECT board_ends FROM generation WHERE id = %(generation_id)s)))
                  >= (c.{{version}}, c.board_offset))
    RETURNING *
)
INSERT INTO board_detail_live AS l ({{served}}, day, deleted, written_at)
SELECT {{served}}, day, deleted, written_at FROM returning_rows ORDER BY {{key}}
ON CONFLICT ({{key}}) DO UPDATE
   SET {{served_excluded}}, day = excluded.day, deleted = excluded.deleted, written_at = excluded.written_at
 WHERE (excluded.{{version}}, excluded.board_offset) > (l.{{version}}, l.board_offset)
