-- A difference is a board of the day that reads otherwise once the generation is published. What the speed layer got
-- from records after the cut stays on top of it and is none: its rows, its tombstones, and a board that was pending at
-- the cut and whose member has come since. `differing` has a row for each, and each gets one class. `changed_board` was
-- made just before, see compare_rows and compare_served. `elsewhere`: boards that readers see on another day.
ANALYZE changed_board;
WITH this AS (
    SELECT g.id, g.board_ends, g.member_ends, p.generation_id AS shown_id, p.board_ends AS shown_ends
      FROM generation g LEFT JOIN day_publication p ON p.day = g.day AND p.generation_id IS NOT NULL
     WHERE g.id = %(generation_id)s
), excluded AS (
    SELECT board_id, min(kind) AS kind FROM generation_excluded
     WHERE generation_id = %(generation_id)s AND board_id IS NOT NULL GROUP BY board_id
), built AS (
    SELECT * FROM board_detail_final
     WHERE generation_id = %(generation_id)s AND day = %(day)s AND {{key}} IN (SELECT board_id FROM changed_board)
), staying AS (
    SELECT l.{{key}}
      FROM board_detail_live l CROSS JOIN this
     WHERE (l.day = %(day)s OR (l.day IS NULL AND l.deleted)) AND l.{{key}} IN (SELECT board_id FROM changed_board)
       AND NOT is_covered(this.id, this.board_ends, this.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                          l.member_partition, l.member_offset)
       AND NOT EXISTS (SELECT 1 FROM built b
                        WHERE b.{{key}} = l.{{key}}
                          AND (b.{{version}}, b.board_offset) >= (l.{{version}}, l.board_offset))
       AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = this.id AND e.board_id = l.{{key}}
                          AND (e.version_at, e.board_offset) >= (l.{{version}}, l.board_offset))
), brought_back AS (
    -- What the publication brings back, see restore_covered: it is read afterwards, whatever the generation has.
    SELECT c.*
      FROM board_detail_covered c CROSS JOIN this
     WHERE c.day = %(day)s AND c.{{key}} IN (SELECT board_id FROM changed_board)
       AND NOT is_covered(this.id, this.board_ends, this.member_ends, c.{{key}}, c.board_partition, c.board_offset,
                          c.member_partition, c.member_offset)
       AND NOT EXISTS (SELECT 1 FROM built b
                        WHERE b.{{key}} = c.{{key}}
                          AND (b.{{version}}, b.board_offset) >= (c.{{version}}, c.board_offset))
       AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = this.id AND e.board_id = c.{{key}}
                          AND (e.version_at, e.board_offset) >= (c.{{version}}, c.board_offset))
       AND NOT EXISTS (SELECT 1 FROM board_detail_live l
                        WHERE l.{{key}} = c.{{key}}
                          AND (l.{{version}}, l.board_offset) >= (c.{{version}}, c.board_offset))
), deleted AS (
    -- A deletion or a move that is newer than the built row, from a record that the cut claims: raw, which had it, has
    -- it no more. One from beyond the cut stays on top.
    SELECT b.{{key}}
      FROM built b CROSS JOIN this
     WHERE EXISTS (SELECT 1 FROM board_detail_live l
                    WHERE l.{{key}} = b.{{key}} AND l.deleted
                      AND (l.{{version}}, l.board_offset) > (b.{{version}}, b.board_offset))
        OR EXISTS (SELECT 1 FROM board_detail_covered c
                    WHERE c.{{key}} = b.{{key}} AND c.deleted
                      AND (c.{{version}}, c.board_offset) > (b.{{version}}, b.board_offset))
        OR EXISTS (SELECT 1 FROM generation_excluded e
                    WHERE e.generation_id = this.shown_id AND e.board_id = b.{{key}}
                      AND (e.version_at, e.board_offset) > (b.{{version}}, b.board_offset))
), shown AS (
    -- as an array, which goes to the indexes of both halves of the view: a join would read the day for each board
    SELECT * FROM board_detail WHERE day = %(day)s AND {{key}} = ANY (ARRAY(SELECT board_id FROM changed_board))
), differing AS MATERIALIZED (
    SELECT COALESCE(b.{{key}}, s.{{key}}) AS {{key}}, b, s, to_jsonb(b) AS built, to_jsonb(s) AS shown
      FROM built b FULL JOIN shown s ON s.{{key}} = b.{{key}}
     WHERE (b.{{key}} IS NULL OR s.{{key}} IS NULL OR ROW({{columns_b}}) IS DISTINCT FROM ROW({{columns_s}}))
       AND NOT EXISTS (SELECT 1 FROM staying y WHERE y.{{key}} = COALESCE(b.{{key}}, s.{{key}}))
       AND NOT EXISTS (SELECT 1 FROM brought_back r WHERE r.{{key}} = COALESCE(b.{{key}}, s.{{key}}))
)
INSERT INTO board_detail_correction (generation_id, day, board_id, class, shown, rebuilt)
SELECT %(generation_id)s, %(day)s, d.{{key}},
       CASE
           WHEN (d.b).{{key}} IS NULL THEN COALESCE(e.kind, 'unexplained')
           WHEN (d.s).{{key}} IS NULL AND d.{{key}} IN (SELECT {{key}} FROM deleted) THEN 'unexplained'
           WHEN (d.s).{{key}} IS NULL AND d.{{key}} = ANY (%(elsewhere)s::bigint[]) THEN 'moved'
           WHEN (d.s).{{key}} IS NULL
                OR ((d.b).{{version}}, (d.b).board_offset) > ((d.s).{{version}}, (d.s).board_offset)
                   AND d.built - %(apart)s::text[] <> d.shown - %(apart)s::text[]
               THEN CASE
                   WHEN (d.b).replayed THEN 'recovered_from_fallback'
                   WHEN (SELECT shown_id IS NOT NULL
                                AND COALESCE((d.b).board_offset >= shown_ends[(d.b).board_partition + 1], true) FROM this)
                       THEN 'late'
                   ELSE 'missing'
               END
           WHEN d.built - %(apart)s::text[] = d.shown - %(apart)s::text[]
                AND ((d.b).member_partition, (d.b).member_offset)
                    IS DISTINCT FROM ((d.s).member_partition, (d.s).member_offset) THEN 'member_version_changed'
           ELSE 'unexplained'
       END,
       CASE WHEN (d.s).{{key}} IS NOT NULL THEN d.shown END,
       CASE WHEN (d.b).{{key}} IS NOT NULL THEN d.built END
  FROM differing d LEFT JOIN excluded e ON e.board_id = d.{{key}}
 UNION ALL
SELECT %(generation_id)s, %(day)s, l.{{key}},
       CASE WHEN l.event_id = s.event_id THEN 'member_version_changed' ELSE 'unexplained' END,
       CASE WHEN s.{{key}} IS NOT NULL THEN to_jsonb(s) END,
       CASE WHEN NOT l.deleted THEN to_jsonb(l) END
  FROM brought_back l LEFT JOIN shown s ON s.{{key}} = l.{{key}}
 WHERE CASE
           WHEN l.deleted THEN s.{{key}} IS NOT NULL
           ELSE s.{{key}} IS NULL OR ROW({{columns_l}}) IS DISTINCT FROM ROW({{columns_s}})
       END
ON CONFLICT DO NOTHING
