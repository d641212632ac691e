-- The pointer of a day: publish, undo, redo, and the rows that a published day covers.

-- name: lock_day_in_transaction
SELECT pg_advisory_xact_lock(7203003, %(day_number)s)

-- name: hold_pointers
-- Waits for tombstones and pending records that were looked for in the days as they are shown now.
SELECT pg_advisory_xact_lock(7203004, 0)

-- name: open_day
INSERT INTO day_publication (day) VALUES (%(day)s) ON CONFLICT (day) DO NOTHING

-- name: lock_shown_day
-- Waits for a batch of the speed layer that is about to write into the day, and holds the next one up.
SELECT generation_id, held_reason, undoable_since FROM day_publication WHERE day = %(day)s FOR UPDATE

-- name: hold_day
UPDATE day_publication SET held_reason = %(reason)s WHERE day = %(day)s

-- name: select_publishable
-- The newest build of the run; without a run the newest that is built or shown. One that was given up because the day
-- showed the same counts too: whoever tries again finds it done.
SELECT id, status, base_generation_id, identical_to
  FROM generation
 WHERE day = %(day)s
   AND (status IN ('built', 'published') OR identical_to IS NOT NULL
        OR (status = 'superseded' AND %(run_id)s::text IS NOT NULL))
   AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
 ORDER BY id DESC LIMIT 1

-- name: forget_attempts
DELETE FROM day_attempt WHERE day = %(day)s

-- name: select_is_of_replaced
-- Was the generation built from a topic that was deleted and made again since, or is there one made again that the
-- stream has not gone to yet? Live rows are of the topic that the stream reads.
SELECT NOT g.cut ?& ARRAY['{{stream}}', '{{table}}']
       OR g.cut -> 'topic_ids' ? '{{stream}}'
          AND EXISTS (SELECT FROM offset_ledger WHERE consumer = 'join' AND topic = '{{stream}}')
          AND NOT EXISTS (SELECT FROM offset_ledger
                           WHERE consumer = 'join' AND topic_id = g.cut -> 'topic_ids' ->> '{{stream}}')
  FROM generation g
 WHERE g.id = %(generation_id)s

-- name: select_is_behind
-- Was the generation built from less than what the day is known to hold? Offsets of another topic do not tell.
SELECT EXISTS (
    SELECT 1
      FROM day_publication p CROSS JOIN generation g
     CROSS JOIN LATERAL jsonb_each_text(p.cut -> '{{stream}}') AS shown (partition, end_offset)
     WHERE p.day = %(day)s AND g.id = %(generation_id)s
       AND NOT COALESCE(p.cut -> 'topic_ids' -> '{{stream}}' <> g.cut -> 'topic_ids' -> '{{stream}}', false)
       AND (g.cut -> '{{stream}}' ->> shown.partition)::bigint < shown.end_offset::bigint)

-- name: select_is_identical
-- Would publishing it change anything? Not when rows, counts and the records that are no rows are the same, no more
-- places in the output topic are known, and its cut covers no live row that readers see.
SELECT CASE
           WHEN (n.content_hash, n.row_count, n.raw_distinct, n.pending_count, n.rejected_count)
                IS DISTINCT FROM (o.content_hash, o.row_count, o.raw_distinct, o.pending_count, o.rejected_count)
               THEN false
           WHEN EXISTS (SELECT 1 FROM detail_live l
                         WHERE l.day = n.day
                           AND is_covered(n.id, n.stream_ends, n.table_ends, l.{{key}}, l.stream_partition,
                                          l.stream_offset, l.table_partition, l.table_offset)
                           AND NOT is_covered(o.id, o.stream_ends, o.table_ends, l.{{key}}, l.stream_partition,
                                              l.stream_offset, l.table_partition, l.table_offset))
               THEN false
           WHEN EXISTS (SELECT kind, identity FROM generation_excluded WHERE generation_id = n.id
                        EXCEPT SELECT kind, identity FROM generation_excluded WHERE generation_id = o.id)
                OR EXISTS (SELECT kind, identity FROM generation_excluded WHERE generation_id = o.id
                           EXCEPT SELECT kind, identity FROM generation_excluded WHERE generation_id = n.id)
               THEN false
           ELSE (SELECT count(f.kafka_offset) FROM detail_final f
                  WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s)
                <= (SELECT count(f.kafka_offset) FROM detail_final f
                     WHERE f.day = %(day)s AND f.generation_id = %(shown_id)s)
       END
  FROM generation n CROSS JOIN generation o
 WHERE n.id = %(generation_id)s AND o.id = %(shown_id)s

-- name: extend_cut
-- The generation that the day shows also has all records up to the later cut.
WITH later AS (
    SELECT cut FROM generation WHERE id = %(generation_id)s
), shown AS (
    UPDATE generation g SET cut = later.cut FROM later WHERE g.id = %(shown_id)s
)
UPDATE day_publication p SET cut = later.cut FROM later WHERE p.day = %(day)s

-- name: discard_identical
UPDATE generation SET status = 'discarded', identical_to = %(shown_id)s WHERE id = %(generation_id)s

-- name: count_on_top
SELECT count(*)
  FROM detail_live l JOIN day_publication p ON p.day = l.day
 WHERE l.day = %(day)s
   AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                      l.table_partition, l.table_offset)

-- name: clear_dirty_day
-- All causes, or these. Locked in the order in which a check of days marks them.
WITH cleared AS (
    SELECT cause FROM dirty_day
     WHERE day = %(day)s AND (%(causes)s::text[] IS NULL OR cause = ANY (%(causes)s))
     ORDER BY cause FOR UPDATE
)
DELETE FROM dirty_day d USING cleared c WHERE d.day = %(day)s AND d.cause = c.cause

-- name: restore_covered
-- Live rows that the generation does not cover come back as they were, unless something newer stands there, or the
-- generation has the key as new. Without a generation, which is 0 (see compare_rows), all of them do.
WITH returning_rows AS (
    DELETE FROM detail_covered c
     WHERE c.day = %(day)s
       AND NOT EXISTS (
           SELECT 1 FROM generation g
            WHERE g.id = %(generation_id)s
              AND is_covered(g.id, g.stream_ends, g.table_ends, c.{{key}}, c.stream_partition, c.stream_offset,
                             c.table_partition, c.table_offset))
       AND NOT EXISTS (
           SELECT 1 FROM detail_final f
            WHERE f.day = %(day)s AND f.generation_id = COALESCE(%(generation_id)s, 0) AND f.{{key}} = c.{{key}}
              AND (f.{{version}}, ordered_offset(f.stream_offset, (SELECT stream_ends FROM generation WHERE id = %(generation_id)s)))
                  >= (c.{{version}}, c.stream_offset))
       AND NOT EXISTS (
           SELECT 1 FROM generation_excluded e
            WHERE e.generation_id = %(generation_id)s AND e.{{key}} = c.{{key}}
              AND (e.version_at, ordered_offset(e.stream_offset, (SELECT stream_ends FROM generation WHERE id = %(generation_id)s)))
                  >= (c.{{version}}, c.stream_offset))
    RETURNING *
)
INSERT INTO detail_live AS l ({{served}}, day, deleted, written_at)
SELECT {{served}}, day, deleted, written_at FROM returning_rows ORDER BY {{key}}
ON CONFLICT ({{key}}) DO UPDATE
   SET {{served_excluded}}, day = excluded.day, deleted = excluded.deleted, written_at = excluded.written_at
 WHERE (excluded.{{version}}, excluded.stream_offset) > (l.{{version}}, l.stream_offset)

-- name: unpoint_day
-- Back to the speed layer's rows alone.
UPDATE day_publication
   SET generation_id = NULL, cut = NULL, status = 'provisional', raw_distinct = NULL, row_count = NULL,
       pending_count = NULL, rejected_count = NULL, content_hash = NULL,
       published_at = NULL, moved_at = now(), certified_at = NULL, undoable_since = LEAST(undoable_since, now())
 WHERE day = %(day)s AND generation_id = %(shown_id)s

-- name: point_day
-- Compare and set of the pointer: no row means that another run published the day meanwhile. What the day shows up to
-- now is kept from now on: rows that were dropped while the server's clock was ahead were dropped before.
UPDATE day_publication p
   SET generation_id = g.id, cut = g.cut, status = 'rebuilt', raw_distinct = g.raw_distinct, row_count = g.row_count,
       pending_count = g.pending_count, rejected_count = g.rejected_count, content_hash = g.content_hash,
       published_at = now(), moved_at = now(), certified_at = NULL, undoable_since = LEAST(p.undoable_since, now())
  FROM generation g
 WHERE p.day = %(day)s AND g.id = %(generation_id)s AND g.status IN ('built', 'superseded')
   AND p.generation_id IS NOT DISTINCT FROM %(shown_id)s

-- name: set_days_of_live_tombstones
-- A key deleted before the view ever showed it: only now it is known which day its tombstone must hide it in.
UPDATE detail_live l
   SET day = %(day)s
 WHERE l.day IS NULL AND l.deleted
   AND (EXISTS (SELECT 1 FROM detail_final f
                 WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = l.{{key}})
        OR was_pending(%(generation_id)s, l.{{key}}))

-- name: count_covered
-- The day has just been pointed at the generation, whose cut hides the live rows below it: how many that hides, how many
-- it shows again, how many are on top of it, and which these are. By SELECT alone, so that the rows are read in
-- parallel: the speed layer waits meanwhile.
SELECT count(*) FILTER (WHERE is_covered AND NOT was_covered),
       count(*) FILTER (WHERE NOT is_covered AND was_covered),
       count(*) FILTER (WHERE NOT is_covered),
       array_agg({{key}}) FILTER (WHERE NOT is_covered AND (%(generation_id)s)::bigint IS NOT NULL)
  FROM (SELECT l.{{key}},
               is_covered(g.id, g.stream_ends, g.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                          l.table_partition, l.table_offset) AS is_covered,
               is_covered(o.id, o.stream_ends, o.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                          l.table_partition, l.table_offset) AS was_covered
          FROM detail_live l
          LEFT JOIN generation g ON g.id = %(generation_id)s
          LEFT JOIN generation o ON o.id = %(shown_id)s
         WHERE l.day = %(day)s) live

-- name: set_aside_known
-- Rows on top of the generation that are no newer than what it knows: few, each looked up by its key.
WITH known AS (
    SELECT l.{{key}}
      FROM detail_live l
     CROSS JOIN LATERAL (SELECT f.{{version}}, f.stream_offset FROM detail_final f
                          WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = l.{{key}}
                          UNION ALL
                         SELECT e.version_at, e.stream_offset FROM generation_excluded e
                          WHERE e.generation_id = %(generation_id)s AND e.{{key}} = l.{{key}}
                          LIMIT 2) f
     WHERE l.{{key}} = ANY (%(keys)s::bigint[]) AND l.day = %(day)s
       AND (f.{{version}}, ordered_offset(f.stream_offset, (SELECT stream_ends FROM generation WHERE id = %(generation_id)s)))
           >= (l.{{version}}, l.stream_offset)
), gone AS (
    DELETE FROM detail_live l USING known k WHERE l.{{key}} = k.{{key}} RETURNING l.*
), kept AS (
    INSERT INTO detail_covered AS c ({{served}}, day, deleted, written_at, generation_id)
    SELECT {{served}}, day, deleted, written_at, %(generation_id)s FROM gone
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = now()
     WHERE (excluded.{{version}}, excluded.stream_offset) >= (c.{{version}}, c.stream_offset)
)
SELECT count(*) FROM gone

-- name: mark_published
UPDATE generation
   SET status = CASE WHEN id = %(generation_id)s THEN 'published' ELSE 'superseded' END,
       published_at = CASE WHEN id = %(generation_id)s THEN now() ELSE published_at END
 WHERE day = %(day)s AND (id = %(generation_id)s OR status = 'published')

-- name: insert_publication
INSERT INTO publication (day, action, from_generation_id, to_generation_id, reason, made_by, covered_rows,
                         restored_rows)
VALUES (%(day)s, %(action)s, %(shown_id)s, %(generation_id)s, %(reason)s, %(made_by)s, %(covered)s, %(restored)s)

-- name: select_broken_balance
-- The terms, when they do not add up.
SELECT raw_distinct, row_count, pending_count, rejected_count
  FROM generation
 WHERE id = %(generation_id)s AND raw_distinct IS DISTINCT FROM row_count + pending_count + rejected_count

-- name: count_unread
-- Rows on top of what the day shows whose records no build can read any more: a gap of the archive was accepted.
SELECT count(*)
  FROM day_publication p
 CROSS JOIN LATERAL jsonb_each(p.cut -> 'unread' -> '{{stream}}') AS lost (partition, ranges)
 CROSS JOIN LATERAL jsonb_array_elements(lost.ranges) AS piece (ends)
  JOIN detail_live l
    ON l.day = p.day AND l.stream_partition = lost.partition::integer
   AND l.stream_offset >= (piece.ends ->> 0)::bigint AND l.stream_offset < (piece.ends ->> 1)::bigint
 WHERE p.day = %(day)s AND p.generation_id IS NOT NULL

-- name: mark_day_dirty_again
-- Live rows on top of the generation that the day shows: their records came after its cut, or no build can read them.
INSERT INTO dirty_day (day, cause, count)
SELECT %(day)s, cause, found
  FROM (VALUES ('late {{stream}}', %(on_top)s - %(unread)s), ('unread {{stream}}', %(unread)s)) AS marked (cause, found)
 WHERE found > 0
ON CONFLICT (day, cause) DO UPDATE SET count = excluded.count, last_at = now()

-- name: select_kept
SELECT status FROM generation WHERE day = %(day)s AND id = %(generation_id)s

-- name: select_publications
SELECT id, day, action, from_generation_id, to_generation_id, reason, made_by, covered_rows, restored_rows, made_at
  FROM publication WHERE day = %(day)s ORDER BY id

-- name: cover_live
-- Rows that the published generation covers, some at a time in the order of their keys. No reader sees them: neither
-- before nor after. A row that the speed layer holds is left for the next time. Set aside is the newest version.
SET LOCAL enable_sort = off;  -- in the order of the key by the index: a sort would read the whole day each time
SET LOCAL enable_bitmapscan = off;
WITH chosen AS (
    SELECT l.{{key}}, p.generation_id, p.published_at
      FROM detail_live l JOIN day_publication p ON p.day = l.day
     WHERE l.day = %(day)s AND l.{{key}} > %(after)s
       AND is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition, l.stream_offset,
                      l.table_partition, l.table_offset)
     ORDER BY l.{{key}} LIMIT %(limit)s FOR UPDATE OF l SKIP LOCKED
), covered AS (
    DELETE FROM detail_live l USING chosen c WHERE l.{{key}} = c.{{key}}
    RETURNING l.*, c.generation_id, c.published_at
), kept AS (
    INSERT INTO detail_covered AS c ({{served}}, day, deleted, written_at, generation_id, covered_at)
    SELECT {{served}}, day, deleted, written_at, generation_id, published_at FROM covered
    ON CONFLICT (day, {{key}}) DO UPDATE
       SET {{served_excluded}}, deleted = excluded.deleted, written_at = excluded.written_at,
           generation_id = excluded.generation_id, covered_at = excluded.covered_at
     WHERE (excluded.{{version}}, excluded.stream_offset) >= (c.{{version}}, c.stream_offset)
)
SELECT count(*), max({{key}}) FROM covered

-- name: uncover_live
-- Covered rows that the target does not cover come back, some at a time in the order of their keys. No reader sees them
-- yet: what the day shows now covers them still. The newest version stays.
SET LOCAL enable_sort = off;  -- in the order of the key by the index: a sort would read the whole day each time
SET LOCAL enable_bitmapscan = off;
WITH chosen AS (
    SELECT c.{{key}}
      FROM detail_covered c JOIN day_publication p ON p.day = c.day
      LEFT JOIN generation g ON g.id = %(generation_id)s
     WHERE c.day = %(day)s AND c.{{key}} > %(after)s
       AND is_covered(p.generation_id, p.stream_ends, p.table_ends, c.{{key}}, c.stream_partition, c.stream_offset,
                      c.table_partition, c.table_offset)
       AND NOT is_covered(g.id, g.stream_ends, g.table_ends, c.{{key}}, c.stream_partition, c.stream_offset,
                          c.table_partition, c.table_offset)
       AND NOT EXISTS (SELECT 1 FROM detail_live l WHERE l.{{key}} = c.{{key}} AND l.day IS DISTINCT FROM c.day)
     ORDER BY c.{{key}} LIMIT %(limit)s
), gone AS (
    DELETE FROM detail_covered c USING chosen WHERE c.day = %(day)s AND c.{{key}} = chosen.{{key}}
    RETURNING c.*
), back AS (
    INSERT INTO detail_live AS l ({{served}}, day, deleted, written_at)
    SELECT {{served}}, day, deleted, written_at FROM gone
    ON CONFLICT ({{key}}) DO UPDATE
       SET {{served_excluded}}, day = excluded.day, deleted = excluded.deleted, written_at = excluded.written_at
     WHERE (excluded.{{version}}, excluded.stream_offset) > (l.{{version}}, l.stream_offset)
)
SELECT count(*), max({{key}}) FROM gone

-- name: save_question
-- Nothing if the run asked about another build of the day, or about other differences.
UPDATE generation g SET asked_digest = %(digest)s
 WHERE g.id = %(generation_id)s
   AND NOT EXISTS (SELECT FROM generation o
                    WHERE o.day = g.day AND o.run_id = g.run_id AND o.asked_digest IS NOT NULL
                      AND (o.id <> g.id OR o.asked_digest <> %(digest)s))

-- name: select_unexplained
-- The generation's unexplained differences; how many of them take a row from readers or bring one back, with some keys
-- of those; a digest of all.
SELECT count(*),
       count(*) FILTER (WHERE rebuilt IS NULL OR shown IS NULL),
       (array_agg({{key}} ORDER BY {{key}}) FILTER (WHERE rebuilt IS NULL OR shown IS NULL))[1:5],
       md5(COALESCE(string_agg(md5(concat_ws('|', {{key}}, COALESCE(shown::text, '-'), COALESCE(rebuilt::text, '-'))),
                               '' ORDER BY {{key}}), ''))
  FROM detail_correction
 WHERE generation_id = %(generation_id)s AND class = 'unexplained'
