-- Corrections: the rows of a generation beside those that readers see.

-- name: begin_comparison
-- One snapshot for all statements: what is compared is what stood there at the position that is kept with it.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: select_correction_samples
SELECT c.class, c.{{key}}, c.shown, c.rebuilt
  FROM unnest(%(classes)s::text[]) AS wanted (class)
 CROSS JOIN LATERAL (SELECT class, {{key}}, shown, rebuilt
                       FROM detail_correction
                      WHERE generation_id = %(generation_id)s AND class = wanted.class
                      ORDER BY {{key}} LIMIT %(limit)s) c
 ORDER BY c.class, c.{{key}}

-- name: select_generation
SELECT id, day, run_id, status, cut, raw_distinct, row_count, pending_count, rejected_count, duplicate_count,
       content_hash
  FROM generation
 WHERE day = %(day)s AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
   AND status IN ('built', 'published')
 ORDER BY id DESC LIMIT 1

-- name: delete_corrections
-- The duplicates were counted by the build; the rest is compared anew.
DELETE FROM detail_correction WHERE generation_id = %(generation_id)s AND class <> 'duplicate';
UPDATE generation SET unlisted_corrections = NULL WHERE id = %(generation_id)s

-- name: select_is_shown
-- The generation that the day shows, if any; and does the speed layer have rows of the day?
SELECT (SELECT generation_id FROM day_publication WHERE day = %(day)s),
       EXISTS (SELECT 1 FROM detail_live WHERE day = %(day)s)

-- name: begin_unlisted
-- No row is compared one by one.
CREATE TEMPORARY TABLE changed_key ({{key}} bigint) ON COMMIT DROP

-- name: save_unlisted
-- Of a day that was not shown all rows are new: they are counted, and not listed one by one. Keys that are compared
-- one by one are not counted here.
UPDATE generation g
   SET unlisted_corrections = (
       SELECT jsonb_object_agg(c.class, c.count)
         FROM (SELECT CASE WHEN f.replayed THEN 'recovered_from_fallback' ELSE 'missing' END AS class, count(*)
                 FROM detail_final f
                WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s
                  AND NOT EXISTS (SELECT 1 FROM changed_key b WHERE b.{{key}} = f.{{key}}) GROUP BY 1) c)
 WHERE g.id = %(generation_id)s

-- name: compare_rows
-- Keys whose row may read otherwise once the generation is published. Of each side only the key and a hash of its row are
-- joined: that takes little memory however long the texts are. The live rows are read once, and not looked up one by
-- one: after a publication the index leads to many that are gone. No generation is 0: with a NULL the whole condition
-- would be false, the day as well, and the tables of all days be opened.
SET LOCAL work_mem = '64MB';  -- for a million keys and hashes
CREATE TEMPORARY TABLE changed_key ON COMMIT DROP AS
WITH live AS MATERIALIZED (
    SELECT l.{{key}}, hash_record_extended(ROW({{columns_l}}), 0) AS content, l.deleted
      FROM detail_live l LEFT JOIN day_publication p ON p.day = l.day
     WHERE l.day = %(day)s
       AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                          l.table_partition, l.table_offset)
), shown AS (
    SELECT {{key}}, hash_record_extended(ROW({{columns}}), 0) AS content
      FROM detail_final f
     WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(shown_id)s, 0)
       AND NOT EXISTS (SELECT 1 FROM live l WHERE l.{{key}} = f.{{key}})
     UNION ALL
    SELECT {{key}}, content FROM live WHERE NOT deleted
)
SELECT COALESCE(b.{{key}}, s.{{key}}) AS {{key}}
  FROM (SELECT {{key}}, hash_record_extended(ROW({{columns}}), 0) AS content
          FROM detail_final
         WHERE day = %(day)s AND generation_id = %(generation_id)s) b
  FULL JOIN shown s ON s.{{key}} = b.{{key}}
 WHERE b.content IS DISTINCT FROM s.content
 UNION
-- and rows that were set aside since the day shows something newer: the publication may bring them back
SELECT c.{{key}}
  FROM detail_covered c JOIN generation g ON g.id = %(generation_id)s
 WHERE c.day = %(day)s
   AND NOT is_covered(g.id, g.stream_ends, g.table_ends, c.{{key}}, c.stream_partition, c.stream_offset,
                      c.table_partition, c.table_offset)

-- name: count_corrections
SELECT class, sum(count)::bigint
  FROM (SELECT class, count(*) FROM detail_correction WHERE generation_id = %(generation_id)s GROUP BY class
        UNION ALL
        SELECT u.key, u.value::bigint
          FROM generation g CROSS JOIN LATERAL jsonb_each_text(g.unlisted_corrections) u
         WHERE g.id = %(generation_id)s) counted
 GROUP BY class ORDER BY class

-- name: begin_look
SAVEPOINT look

-- name: end_look
-- Locks that were taken since are let go.
ROLLBACK TO SAVEPOINT look

-- name: select_shown_generations
-- The generations that published days show and that may have one of the keys from the first to the last, each with its
-- first and last key: the newest day first.
SELECT p.day - date '1970-01-01', g.id, g.first_key, g.last_key
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE g.last_key >= %(first_key)s AND g.first_key <= %(last_key)s
 ORDER BY p.day DESC

-- name: select_live_days
SELECT DISTINCT day FROM detail_live WHERE {{key}} = ANY (%(keys)s::bigint[]) AND day IS NOT NULL AND NOT deleted

-- name: select_seen_keys
SELECT {{key}} FROM {{view}} WHERE day = %(day)s AND {{key}} = ANY (%(keys)s::bigint[])

-- name: save_verified
UPDATE generation
   SET verified_at = now(), verified_shown_id = %(shown_id)s, verified_position = %(position)s
 WHERE id = %(generation_id)s

-- name: select_absent_keys
-- Keys whose row may read otherwise and that the day does not show; no more than that many.
SELECT c.{{key}}
  FROM changed_key c
 WHERE NOT EXISTS (SELECT 1 FROM {{view}} s WHERE s.day = %(day)s AND s.{{key}} = c.{{key}})
 ORDER BY c.{{key}}
 LIMIT %(limit)s

-- name: insert_corrections
-- A difference is a row of the day that reads otherwise once the generation is published. What the speed layer got from
-- records after the cut stays on top of it and is none: its rows, its tombstones, and a row that was pending at the cut
-- and whose table key has come since. `differing` has a row for each, and each gets one class. `changed_key` was made
-- just before, see compare_rows and compare_served. `elsewhere`: keys that readers see on another day. Table
-- `reject` has every record that the build rejects: a row or a deletion from such a record was made before the contract
-- was narrowed.
ANALYZE changed_key;
WITH this AS (
    SELECT g.id, g.stream_ends, g.table_ends, p.generation_id AS shown_id, p.stream_ends AS shown_ends
      FROM generation g LEFT JOIN day_publication p ON p.day = g.day AND p.generation_id IS NOT NULL
     WHERE g.id = %(generation_id)s
), excluded AS (
    SELECT {{key}}, min(kind) AS kind FROM generation_excluded
     WHERE generation_id = %(generation_id)s AND {{key}} IS NOT NULL GROUP BY {{key}}
), built AS (
    SELECT * FROM detail_final
     WHERE generation_id = %(generation_id)s AND day = %(day)s AND {{key}} IN (SELECT {{key}} FROM changed_key)
), staying AS (
    SELECT l.{{key}}
      FROM detail_live l CROSS JOIN this
     WHERE (l.day = %(day)s OR (l.day IS NULL AND l.deleted)) AND l.{{key}} IN (SELECT {{key}} FROM changed_key)
       AND NOT is_covered(this.id, this.stream_ends, this.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                          l.table_partition, l.table_offset)
       AND NOT EXISTS (SELECT 1 FROM built b
                        WHERE b.{{key}} = l.{{key}}
                          AND (b.{{version}}, b.stream_offset) >= (l.{{version}}, l.stream_offset))
       AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = this.id AND e.{{key}} = l.{{key}}
                          AND (e.version_at, e.stream_offset) >= (l.{{version}}, l.stream_offset))
), brought_back AS (
    -- Rows that the publication brings back, see restore_covered. They are visible afterwards, with any generation.
    SELECT c.*
      FROM detail_covered c CROSS JOIN this
     WHERE c.day = %(day)s AND c.{{key}} IN (SELECT {{key}} FROM changed_key)
       AND NOT is_covered(this.id, this.stream_ends, this.table_ends, c.{{key}}, c.stream_partition, c.stream_offset,
                          c.table_partition, c.table_offset)
       AND NOT EXISTS (SELECT 1 FROM built b
                        WHERE b.{{key}} = c.{{key}}
                          AND (b.{{version}}, b.stream_offset) >= (c.{{version}}, c.stream_offset))
       AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                        WHERE e.generation_id = this.id AND e.{{key}} = c.{{key}}
                          AND (e.version_at, e.stream_offset) >= (c.{{version}}, c.stream_offset))
       AND NOT EXISTS (SELECT 1 FROM detail_live l
                        WHERE l.{{key}} = c.{{key}}
                          AND (l.{{version}}, l.stream_offset) >= (c.{{version}}, c.stream_offset))
), refused AS NOT MATERIALIZED (
    -- with the key: a topic that was made again has other records at the same offsets
    SELECT partition, "offset", key FROM reject WHERE topic = '{{stream}}' AND rejected_by <> 'repair'
), waiting AS (
    -- Keys that are pending after the publication: see cover_pending. Their rows are hidden.
    SELECT w.{{key}}
      FROM pending_record w CROSS JOIN this
     WHERE w.{{key}} IN (SELECT {{key}} FROM changed_key)
       AND CASE WHEN w.day = %(day)s
                THEN (NOT COALESCE(w."offset" < this.stream_ends[w.partition + 1], false)
                      OR was_pending(this.id, w.{{key}}))
                     AND NOT EXISTS (SELECT 1 FROM built b
                                      WHERE b.{{key}} = w.{{key}}
                                        AND ((b.{{version}}, b.stream_offset) >= (w.version_at, w."offset")
                                             OR b.{{version}} = w.version_at AND b.event_id = w.event_id))
                ELSE w.covered_by IS NULL END
), deleted AS (
    -- A deletion or a move that is newer than the built row, from a record that the cut claims: raw, which had it, has
    -- it no more. One from beyond the cut stays on top.
    SELECT b.{{key}}
      FROM built b CROSS JOIN this
     WHERE EXISTS (SELECT 1 FROM detail_live l
                    WHERE l.{{key}} = b.{{key}} AND l.deleted
                      AND (l.{{version}}, l.stream_offset) > (b.{{version}}, b.stream_offset)
                      AND NOT EXISTS (SELECT 1 FROM refused r
                                       WHERE (r.partition, r."offset") = (l.stream_partition, l.stream_offset)
                                         AND r.key = convert_to(l.{{key}}::text, 'UTF8')))
        OR EXISTS (SELECT 1 FROM detail_covered c
                    WHERE c.{{key}} = b.{{key}} AND c.deleted
                      AND (c.{{version}}, c.stream_offset) > (b.{{version}}, b.stream_offset)
                      AND NOT EXISTS (SELECT 1 FROM refused r
                                       WHERE (r.partition, r."offset") = (c.stream_partition, c.stream_offset)
                                         AND r.key = convert_to(c.{{key}}::text, 'UTF8')))
        OR EXISTS (SELECT 1 FROM generation_excluded e
                    WHERE e.generation_id = this.shown_id AND e.{{key}} = b.{{key}}
                      AND (e.version_at, e.stream_offset) > (b.{{version}}, b.stream_offset)
                      AND NOT EXISTS (SELECT 1 FROM refused r
                                       WHERE (r.partition, r."offset") = (e.stream_partition, e.stream_offset)
                                         AND r.key = convert_to(e.{{key}}::text, 'UTF8')))
), shown AS (
    -- as an array, which goes to the indexes of both halves of the view: a join would read the day for each key
    SELECT * FROM {{view}} WHERE day = %(day)s AND {{key}} = ANY (ARRAY(SELECT {{key}} FROM changed_key))
), added AS (
    -- Columns that were added to the definition on the day or later: what was served before has NULL in them.
    SELECT COALESCE(array_agg(a.key), '{}') AS columns
      FROM pipeline_setting s CROSS JOIN LATERAL jsonb_each_text(s.value::jsonb) a
     WHERE s.name = 'added_columns' AND a.value::date >= %(day)s
), differing AS MATERIALIZED (
    -- `shown` is compared as it would be with the values of added columns
    SELECT COALESCE(b.{{key}}, s.{{key}}) AS {{key}}, b, s, to_jsonb(b) AS built,
           to_jsonb(s) || (SELECT COALESCE(jsonb_object_agg(name, to_jsonb(b) -> name), '{}')
                             FROM added CROSS JOIN LATERAL unnest(added.columns) name
                            WHERE b.{{key}} IS NOT NULL AND to_jsonb(s) -> name = 'null') AS shown
      FROM built b FULL JOIN shown s ON s.{{key}} = b.{{key}}
     WHERE (b.{{key}} IS NULL OR s.{{key}} IS NULL OR ROW({{columns_b}}) IS DISTINCT FROM ROW({{columns_s}}))
       AND NOT EXISTS (SELECT 1 FROM staying y WHERE y.{{key}} = COALESCE(b.{{key}}, s.{{key}}))
       AND NOT EXISTS (SELECT 1 FROM brought_back r WHERE r.{{key}} = COALESCE(b.{{key}}, s.{{key}}))
       AND NOT (s.{{key}} IS NULL
                AND b.{{key}} IN (SELECT {{key}} FROM waiting))
)
INSERT INTO detail_correction (generation_id, day, {{key}}, class, shown, rebuilt)
SELECT %(generation_id)s, %(day)s, d.{{key}},
       CASE
           WHEN (d.b).{{key}} IS NULL AND e.kind IS NOT NULL THEN e.kind
           WHEN EXISTS (SELECT 1 FROM refused r
                         WHERE (r.partition, r."offset") = ((d.s).stream_partition, (d.s).stream_offset)
                           AND r.key = convert_to(d.{{key}}::text, 'UTF8')) THEN 'rejected'
           WHEN (d.b).{{key}} IS NULL THEN 'unexplained'
           WHEN (d.s).{{key}} IS NULL AND d.{{key}} IN (SELECT {{key}} FROM deleted) THEN 'unexplained'
           WHEN (d.s).{{key}} IS NULL AND d.{{key}} = ANY (%(elsewhere)s::bigint[]) THEN 'moved'
           WHEN (d.s).{{key}} IS NULL
                OR ((d.b).{{version}}, (d.b).stream_offset) > ((d.s).{{version}}, (d.s).stream_offset)
                   AND d.built - %(apart)s::text[] <> d.shown - %(apart)s::text[]
               THEN CASE
                   WHEN (d.b).replayed THEN 'recovered_from_fallback'
                   WHEN (SELECT shown_id IS NOT NULL
                                AND COALESCE((d.b).stream_offset >= shown_ends[(d.b).stream_partition + 1], true) FROM this)
                       THEN 'late'
                   ELSE 'missing'
               END
           WHEN d.built - %(apart)s::text[] = d.shown - %(apart)s::text[]
                AND ((d.b).table_partition, (d.b).table_offset)
                    IS DISTINCT FROM ((d.s).table_partition, (d.s).table_offset) THEN '{{table}}_version_changed'
           WHEN d.shown <> to_jsonb(d.s) AND d.built - %(bookkeeping)s::text[] = d.shown - %(bookkeeping)s::text[]
               THEN 'column_added'
           ELSE 'unexplained'
       END,
       CASE WHEN (d.s).{{key}} IS NOT NULL THEN to_jsonb(d.s) END,
       CASE WHEN (d.b).{{key}} IS NOT NULL THEN d.built END
  FROM differing d LEFT JOIN excluded e ON e.{{key}} = d.{{key}}
 UNION ALL
SELECT %(generation_id)s, %(day)s, l.{{key}},
       CASE WHEN l.event_id = s.event_id THEN '{{table}}_version_changed' ELSE 'unexplained' END,
       CASE WHEN s.{{key}} IS NOT NULL THEN to_jsonb(s) END,
       CASE WHEN NOT l.deleted THEN to_jsonb(l) END
  FROM brought_back l LEFT JOIN shown s ON s.{{key}} = l.{{key}}
 WHERE CASE
           WHEN s.{{key}} IS NULL AND l.{{key}} IN (SELECT {{key}} FROM waiting) THEN false
           WHEN l.deleted THEN s.{{key}} IS NOT NULL
           ELSE s.{{key}} IS NULL OR ROW({{columns_l}}) IS DISTINCT FROM ROW({{columns_s}})
       END
ON CONFLICT DO NOTHING

-- name: select_verified
SELECT verified_at, verified_shown_id, verified_position, unlisted_corrections IS NOT NULL
  FROM generation WHERE id = %(generation_id)s

-- name: compare_served
-- Keys with a record that was served since the comparison and may make the day read otherwise, before the publication
-- or after: one of the day, a deletion without a day, and one that went to another day; and one that was set aside, as
-- the day shows something newer, since the publication may bring it back. Each is compared again.
-- No generation is 0, see compare_rows. Made by SELECT alone, so that the live rows are read in parallel.
CREATE TEMPORARY TABLE changed_key ON COMMIT DROP AS
SELECT l.{{key}} AS {{key}}
  FROM detail_live l
 WHERE COALESCE(l.kafka_offset >= COALESCE((%(since)s::bigint[])[l.kafka_partition + 1], 0), true)
   AND (l.day IS NULL OR l.day = %(day)s
        OR EXISTS (SELECT 1 FROM detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = l.{{key}})
        OR EXISTS (SELECT 1 FROM detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(shown_id)s, 0) AND f.{{key}} = l.{{key}})
        OR EXISTS (SELECT 1 FROM detail_correction c
                    WHERE c.generation_id = %(generation_id)s AND c.{{key}} = l.{{key}}))
 UNION
SELECT c.{{key}}
  FROM detail_covered c
 WHERE c.day = %(day)s
   AND COALESCE(c.kafka_offset >= COALESCE((%(since)s::bigint[])[c.kafka_partition + 1], 0), true)
 UNION
-- and keys that the day showed, or may show, and that are pending since: their older rows are hidden
SELECT w.{{key}}
  FROM pending_record w
 WHERE w.pending_since >= %(pending_since)s
   AND (EXISTS (SELECT 1 FROM detail_live l WHERE l.{{key}} = w.{{key}})
        OR EXISTS (SELECT 1 FROM detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = w.{{key}})
        OR EXISTS (SELECT 1 FROM detail_final f
                    WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(shown_id)s, 0) AND f.{{key}} = w.{{key}})
        OR EXISTS (SELECT 1 FROM detail_correction c
                    WHERE c.generation_id = %(generation_id)s AND c.{{key}} = w.{{key}}))

-- name: select_is_pending_since
SELECT EXISTS (SELECT FROM pending_record WHERE pending_since >= %(pending_since)s)

-- name: delete_compared_again
DELETE FROM detail_correction c
 USING changed_key b
 WHERE c.generation_id = %(generation_id)s AND c.{{key}} = b.{{key}} AND c.class <> 'duplicate'
