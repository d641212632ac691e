WITH built AS (
    SELECT * FROM board_detail_final WHERE generation_id = %(generation_id)s
), shown AS (
    SELECT * FROM board_detail WHERE day = %(day)s
), published AS (
    SELECT cut FROM day_publication WHERE day = %(day)s AND generation_id IS NOT NULL
), this AS (
    SELECT cut FROM generation WHERE id = %(generation_id)s
), differing AS (
    SELECT COALESCE(b.{{key}}, s.{{key}}) AS {{key}}, b, s
      FROM built b FULL JOIN shown s ON s.{{key}} = b.{{key}}
     WHERE (b.{{key}} IS NULL OR s.{{key}} IS NULL OR ROW({{columns_b}}) IS DISTINCT FROM ROW({{columns_s}}))
       -- what came after the cut is not a difference: the live row stays on top
       AND NOT COALESCE(s.finality = 'live'
                        AND s.board_offset >= ((SELECT cut FROM this) -> 'board' ->> s.board_partition::text)::bigint,
                        false)
)
INSERT INTO board_detail_correction (generation_id, day, board_id, class, shown, rebuilt)
SELECT %(generation_id)s, %(day)s, d.{{key}},
       CASE
           WHEN (d.s).{{key}} IS NULL AND (d.b).replayed THEN 'recovered_from_fallback'
           WHEN (d.s).{{key}} IS NULL AND (d.b).board_offset
                >= ((SELECT cut FROM published) -> 'board' ->> (d.b).board_partition::text)::bigint THEN 'late'
           WHEN (d.s).{{key}} IS NULL THEN 'missing'
           WHEN (d.b).{{key}} IS NULL THEN COALESCE(
               (SELECT e.kind FROM generation_excluded e
                 WHERE e.generation_id = %(generation_id)s AND e.board_id = d.{{key}} LIMIT 1), 'unexplained')
           WHEN ((d.b).{{version}}, (d.b).board_offset) > ((d.s).{{version}}, (d.s).board_offset) THEN 'missing'
           WHEN (d.b).board_offset = (d.s).board_offset AND (d.b).board_partition = (d.s).board_partition
                AND ((d.b).member_partition, (d.b).member_offset)
                    IS DISTINCT FROM ((d.s).member_partition, (d.s).member_offset) THEN 'member_version_changed'
           ELSE 'unexplained'
       END,
       CASE WHEN (d.s).{{key}} IS NOT NULL THEN to_jsonb(d.s) END,
       CASE WHEN (d.b).{{key}} IS NOT NULL THEN to_jsonb(d.b) END
  FROM differing d
ON CONFLICT DO NOTHING
