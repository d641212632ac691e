-- A generation: one build of a day, from its first row until its table is part of the view.

-- name: lock_day
SELECT pg_try_advisory_lock(7203002, %(day_number)s)

-- name: count_attempt
-- A run that tries again is one.
INSERT INTO day_attempt AS a (day, run_id) VALUES (%(day)s, %(run_id)s)
ON CONFLICT (day) DO UPDATE
   SET runs = a.runs + (a.run_id <> excluded.run_id)::integer, run_id = excluded.run_id, last_at = now()

-- name: select_begun_days
SELECT day FROM day_attempt WHERE run_id = %(run_id)s

-- name: take_over_build
-- A build of what the day shows now, made by a run that leaves it to this one: it is this one's from here on.
WITH taken AS (
    UPDATE generation g SET run_id = %(run_id)s
     WHERE g.day = %(day)s AND g.run_id = %(built_by)s AND g.status = 'built'
       AND g.base_generation_id IS NOT DISTINCT FROM (SELECT generation_id FROM day_publication WHERE day = %(day)s)
    RETURNING g.id
), renamed AS (
    UPDATE rebuild_run r SET run_id = %(run_id)s FROM taken WHERE r.generation_id = taken.id
)
SELECT id FROM taken

-- name: select_first_offsets
-- The first offsets of the day's known records: a client's clock may have been ahead by days.
SELECT stream_partition, min(stream_offset), kafka_partition, min(kafka_offset)
  FROM (SELECT stream_partition, stream_offset, kafka_partition, kafka_offset
          FROM detail_live WHERE day = %(day)s
         UNION ALL
        SELECT f.stream_partition, f.stream_offset, f.kafka_partition, f.kafka_offset
          FROM detail_final f JOIN day_publication p ON p.generation_id = f.generation_id
         WHERE p.day = %(day)s AND f.day = %(day)s AND p.cut ? %(topic)s
         UNION ALL
        SELECT e.stream_partition, e.stream_offset, NULL, NULL
          FROM generation_excluded e JOIN day_publication p ON p.generation_id = e.generation_id
         WHERE p.day = %(day)s AND p.cut ? %(topic)s
         UNION ALL
        SELECT partition, "offset", NULL, NULL FROM pending_record WHERE day = %(day)s AND topic = %(topic)s) known
 WHERE stream_partition >= 0  -- those of a topic that was replaced are negative
 GROUP BY stream_partition, kafka_partition

-- name: select_forgotten
SELECT {{table_key}} FROM forgotten_key

-- name: discard_unfinished
-- An earlier try of the same run, killed half way: the caller drops its table.
UPDATE generation SET status = 'discarded'
 WHERE day = %(day)s AND status IN ('building', 'built') AND (run_id = %(run_id)s OR status = 'building')

-- name: insert_generation
-- The base is what the day shows now: whoever publishes this build later must still find it there.
INSERT INTO generation (day, run_id, reason, cut, starts, base_generation_id)
VALUES (%(day)s, %(run_id)s, %(reason)s, %(cut)s, %(starts)s,
        (SELECT generation_id FROM day_publication WHERE day = %(day)s))
RETURNING id

-- name: create_generation_table
SELECT generations.create_table(%(generation_id)s, %(day)s)

-- name: claim_load
-- Nothing is loaded into a generation that was discarded meanwhile: its driver may live on without knowing.
INSERT INTO generation_load (generation_id, part, row_count)
SELECT id, %(part)s, %(row_count)s FROM generation WHERE id = %(generation_id)s AND status = 'building' FOR KEY SHARE
ON CONFLICT DO NOTHING

-- name: select_load
SELECT row_count FROM generation_load WHERE generation_id = %(generation_id)s AND part = %(part)s

-- name: copy_generation
COPY {table} (generation_id, day, {{served}}, replayed) FROM STDIN (FORMAT binary)

-- name: attach_generation
SELECT generations.attach_table(%(generation_id)s, %(day)s, %(first_key)s, %(last_key)s, %(earliest)s, %(latest)s)

-- name: finish_generation
UPDATE generation
   SET status = 'built', built_at = now(), raw_distinct = %(raw_distinct)s, row_count = %(row_count)s,
       pending_count = %(pending_count)s, rejected_count = %(rejected_count)s,
       duplicate_count = %(duplicate_count)s, misplaced_count = %(misplaced_count)s, content_hash = %(content_hash)s,
       hashed_columns = %(hashed_columns)s, newest_version_at = %(newest_version_at)s,
       first_key = LEAST(%(first_key)s, p.first_key), last_key = GREATEST(%(last_key)s, p.last_key)
  FROM (SELECT min({{key}}) AS first_key, max({{key}}) AS last_key
          FROM generation_excluded WHERE generation_id = %(generation_id)s AND kind = 'pending') p
 WHERE id = %(generation_id)s AND status = 'building'

-- name: index_generation
SELECT generations.index_table(%(generation_id)s)

-- name: analyze_generation
SELECT generations.analyze_table(%(generation_id)s)

-- name: freeze_generation
-- PostgreSQL warns and does nothing before version 17, where only the owner may.
VACUUM (FREEZE, SKIP_LOCKED) {table}

-- name: measure_generation
-- The hash depends on raw, the cut, the columns and the database's secret alone: not on the order of rows, nor on what
-- the speed layer made of them. Without the secret it would tell the masked values of a row to who knows the others.
SELECT count(*), COALESCE(max({{version}}), 'epoch'), min({{key}}), max({{key}}), min({{day_from}})::text,
       max({{day_from}})::text,
       COALESCE(sum(hash_record_extended(ROW({columns}), (SELECT hash_seed()))), 0)::text
  FROM {table}

-- name: select_hashed_columns
SELECT hashed_columns FROM generation WHERE id = %(generation_id)s

-- name: insert_excluded
INSERT INTO generation_excluded
    (generation_id, kind, identity, {{key}}, stream_partition, stream_offset, reason, version_at)
VALUES %s
ON CONFLICT DO NOTHING

-- name: insert_duplicates
INSERT INTO detail_correction (generation_id, day, {{key}}, class, rebuilt) VALUES %s
ON CONFLICT DO NOTHING

-- name: select_attached
SELECT 1 FROM pg_inherits
 WHERE inhparent = 'detail_final'::regclass AND inhrelid = to_regclass(%(table)s) AND NOT inhdetachpending

-- name: select_leftover_tables
-- Tables whose generation was given up, or is not known. Of a day, or of all; attached ones last.
SELECT substring(c.relname FROM '[0-9]+$')::bigint, i.inhrelid IS NOT NULL AS is_attached
  FROM pg_class c
  LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = 'detail_final'::regclass
  LEFT JOIN generation g ON c.relname = 'detail_final_g' || g.id
 WHERE c.relnamespace = 'generations'::regnamespace AND c.relkind = 'r'
   AND c.relname ~ '^detail_final_g[0-9]{1,18}$'
   AND (g.id IS NULL OR g.status = 'discarded')
   AND (%(day)s::date IS NULL OR g.day = %(day)s)
 ORDER BY is_attached, 1

-- name: drop_generation_tables
-- Attached ones take the lock that all readers of the view wait behind: it is waited for as long as the first says.
SELECT set_config('lock_timeout', %(lock_timeout)s, true), generations.drop_table(id) FROM unnest(%(ids)s::bigint[]) id

-- name: fail_lost_rebuild_runs
-- Runs whose driver is gone: the day is held by this one, so none of them goes on.
UPDATE rebuild_run
   SET phase = 'failed', error = 'its driver ended without a word', finished_at = now()
 WHERE day = %(day)s AND phase NOT IN ('built', 'failed')

-- name: insert_rebuild_run
INSERT INTO rebuild_run (generation_id, day, run_id, host, source, phase, records_total, parts_total)
VALUES (%(generation_id)s, %(day)s, %(run_id)s, %(host)s, %(source)s, 'reading', %(records_total)s, %(parts_total)s)

-- name: update_rebuild_run
-- The parts that hold rows come first; what is claimed beyond them are decisions about keys.
UPDATE rebuild_run r
   SET phase_at = CASE WHEN r.phase = %(phase)s THEN r.phase_at ELSE now() END, phase = %(phase)s,
       records_read = GREATEST(r.records_read, %(records_read)s), error = %(error)s,
       parts_loaded = l.parts, rows_loaded = l.row_count,
       finished_at = CASE WHEN %(phase)s IN ('built', 'failed') THEN now() END
  FROM (SELECT count(*) AS parts, COALESCE(sum(row_count), 0) AS row_count
          FROM generation_load
         WHERE generation_id = %(generation_id)s AND part >= 0) l
 WHERE r.generation_id = %(generation_id)s
RETURNING r.records_read, r.records_total, r.parts_loaded, r.parts_total, r.rows_loaded

-- name: count_generations
SELECT status, count(*) FROM generation GROUP BY status
