-- Rows on top of the generation that are no newer than what it knows: few, each looked up by its key.
WITH known AS (
    SELECT l.{{key}}
      FROM board_detail_live l
     CROSS JOIN LATERAL (SELECT f.{{version}}, f.board_offset FROM board_detail_final f
                          WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = l.{{key}}
                          UNION ALL
                         SELECT e.version_at, e.board_offset FROM generation_excluded e
                          WHERE e.generation_id = %(generation_id)s AND e.board_id = l.{{key}}
                          LIMIT 2) f
     WHERE l.{{key}} = ANY (%(keys)s::bigint[]) AND l.day = %(day)s
       AND (f.{{version}}, ordered_offset(f.board_offset, (SELECT board_ends FROM generation WHERE id = %(generation_id)s)))
           >= (l.{{version}}, l.board_offset)
), gone AS (
    DELETE FROM board_detail_live l USING known k WHERE l.{{key}} = k.{{key}} RETURNING l.*
), kept AS (
    INSERT INTO board_detail_covered AS c ({{served}}, day, deleted, written_at, generation_id)
    SELECT {{served}}, day, deleted, written_at, %(generation_id)s FROM gone
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = now()
     WHERE (excluded.{{version}}, excluded.board_offset) >= (c.{{version}}, c.board_offset)
)
SELECT count(*) FROM gone
