-- The day has just been pointed at the generation, whose cut hides the rows below it. What is left on top of it and is
-- no newer than the generation's row is set aside: few rows, each looked up by its key.
SET LOCAL work_mem = '64MB';
WITH live AS MATERIALIZED (
    SELECT l.{{key}}, l.{{version}}, l.board_offset,
           is_covered(p.generation_id, p.board_ends, p.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                      l.member_partition, l.member_offset) AS is_covered,
           is_covered(o.id, o.board_ends, o.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                      l.member_partition, l.member_offset) AS was_covered
      FROM board_detail_live l JOIN day_publication p ON p.day = l.day
      LEFT JOIN generation o ON o.id = %(shown_id)s
     WHERE l.day = %(day)s
), known AS (
    SELECT t.{{key}}
      FROM live t
     CROSS JOIN LATERAL (SELECT f.{{version}}, f.board_offset FROM board_detail_final f
                          WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = t.{{key}}
                          UNION ALL
                         SELECT e.version_at, e.board_offset FROM generation_excluded e
                          WHERE e.generation_id = %(generation_id)s AND e.board_id = t.{{key}}
                          LIMIT 2) f
     WHERE NOT t.is_covered AND (f.{{version}}, f.board_offset) >= (t.{{version}}, t.board_offset)
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
SELECT count(*) FILTER (WHERE is_covered AND NOT was_covered) + (SELECT count(*) FROM known) AS covered,
       count(*) FILTER (WHERE NOT is_covered AND was_covered) AS restored,
       count(*) FILTER (WHERE NOT is_covered) - (SELECT count(*) FROM known) AS on_top
  FROM live
