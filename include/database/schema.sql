-- The schema of a pipeline's database. A new database is made from it (see include.database.migrate), and one of an earlier
-- release gets the same schema by migrations; tests/agreement/database/test_schema.py compares the two.
-- A name in double braces stands for a name, or a list of columns, of the pipeline definition; see include.database.named.

DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %I SET jit = off', current_database());
    EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_custom_plan', current_database());
END
$$;

CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
GRANT SELECT ON alembic_version TO batch, stream, gateway;

-- Tables.

CREATE FUNCTION cut_ends(cut jsonb, topic text) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN (SELECT array_agg((cut -> topic ->> number::text)::bigint ORDER BY number)
          FROM generate_series(0, (SELECT max(name::integer) FROM jsonb_object_keys(cut -> topic) name)) number);

COMMENT ON FUNCTION cut_ends IS
    'End offsets of a topic in a cut. Element 1 is partition 0; null for a partition that the cut does not have.';

CREATE TABLE pipeline_setting (
    name text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (name)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT ON pipeline_setting TO stream;
GRANT SELECT, INSERT ON pipeline_setting TO batch;
COMMENT ON TABLE pipeline_setting IS 'Settings of the deployment that views need, and those that must not change.';
INSERT INTO pipeline_setting (name, value)
VALUES ('hash_seed', ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint::text);

CREATE FUNCTION hash_seed() RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT value::bigint FROM pipeline_setting WHERE name = 'hash_seed');
COMMENT ON FUNCTION hash_seed IS 'The secret of the database that content_hash is computed with.';
REVOKE EXECUTE ON FUNCTION hash_seed FROM PUBLIC;
GRANT EXECUTE ON FUNCTION hash_seed TO batch;

CREATE TABLE generation (
    id bigint GENERATED ALWAYS AS IDENTITY,
    day date NOT NULL,
    run_id text NOT NULL,
    reason text,
    status text NOT NULL DEFAULT 'building',
    cut jsonb NOT NULL,
    base_generation_id bigint,
    raw_distinct bigint,
    row_count bigint,
    pending_count bigint,
    rejected_count bigint,
    duplicate_count bigint,
    content_hash text,
    created_at timestamptz NOT NULL DEFAULT now(),
    built_at timestamptz,
    published_at timestamptz,
    identical_to bigint,
    starts jsonb,
    misplaced_count bigint,
    uncertified_reason text,
    unlisted_corrections jsonb,
    stream_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, '{{stream}}')) STORED,
    table_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, '{{table}}')) STORED,
    first_key bigint,
    last_key bigint,
    verified_at timestamptz,
    verified_shown_id bigint,
    verified_position jsonb,
    newest_version_at timestamptz,
    hashed_columns text[],
    asked_digest text,
    PRIMARY KEY (id),
    CHECK (status IN ('building', 'built', 'published', 'superseded', 'discarded'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX generation_day ON generation (day, id);
GRANT SELECT (id, day, run_id, reason, status, raw_distinct, row_count, pending_count, rejected_count, duplicate_count,
              content_hash, created_at, built_at, published_at, identical_to, uncertified_reason, first_key, last_key)
   ON generation TO integrity;
GRANT SELECT ON generation TO stream;
GRANT SELECT, INSERT, UPDATE, DELETE ON generation TO batch;
COMMENT ON TABLE generation IS 'One build of one day from the raw topics up to a cut.';
COMMENT ON COLUMN generation.cut IS 'End offset (exclusive) a raw topic and partition.';
COMMENT ON COLUMN generation.base_generation_id IS 'What the day showed when the build began: it replaces only that.';
COMMENT ON COLUMN generation.content_hash IS
    'Sum of PostgreSQL''s hash of each row, without kafka_partition and kafka_offset: the same rows give the same.';
COMMENT ON COLUMN generation.identical_to IS
    'Given up because the day showed that generation, with the same content; its cut then stands for this one.';
COMMENT ON COLUMN generation.starts IS 'First offset read, a topic and partition.';
COMMENT ON COLUMN generation.misplaced_count IS
    'Records of the day whose record is more than a day away from it in Kafka: a clock was wrong, or they came late.';
COMMENT ON COLUMN generation.uncertified_reason IS
    'Why its day could not be certified when that was last tried; null when it was, or was not tried.';
COMMENT ON COLUMN generation.unlisted_corrections IS
    'Counts by class of a large day of which nothing was shown before: its corrections are not listed one by one.';
COMMENT ON COLUMN generation.stream_ends IS 'The cut of topic {{stream}}, by partition; element 1 is partition 0.';
COMMENT ON COLUMN generation.table_ends IS 'The cut of topic {{table}}, by partition; element 1 is partition 0.';
COMMENT ON COLUMN generation.first_key IS
    'The smallest {{stream}} id of its rows and of what is pending; null without either.';
COMMENT ON COLUMN generation.last_key IS
    'The greatest {{stream}} id of its rows and of what is pending; null without either.';
COMMENT ON COLUMN generation.verified_at IS 'When it was last compared with what readers saw; null: never.';
COMMENT ON COLUMN generation.verified_shown_id IS
    'The generation that the day showed then; null: the speed layer''s rows alone.';
COMMENT ON COLUMN generation.verified_position IS
    'How far {{output}} was served then, by topic id and partition: records from there on were not compared.';
COMMENT ON COLUMN generation.newest_version_at IS
    'The newest version of its rows; 1970-01-01 without rows, null while it is built.';
COMMENT ON COLUMN generation.hashed_columns IS
    'The columns that content_hash was computed from, in their order; columns that were added later are not in it.';
COMMENT ON COLUMN generation.asked_digest IS
    'Digest of the unexplained differences that a person was asked to approve; null if nobody was.';

CREATE TABLE generation_load (
    generation_id bigint NOT NULL,
    part integer NOT NULL,
    row_count bigint NOT NULL,
    PRIMARY KEY (generation_id, part),
    FOREIGN KEY (generation_id) REFERENCES generation ON DELETE CASCADE
);
GRANT SELECT, INSERT, UPDATE, DELETE ON generation_load TO batch;
COMMENT ON TABLE generation_load IS 'Parts already loaded: a retried task finds its part here and loads nothing.';
COMMENT ON COLUMN generation_load.part IS 'From 0 on the parts that hold rows; below, decisions about {{stream}}s.';

CREATE TABLE generation_excluded (
    generation_id bigint NOT NULL,
    kind text NOT NULL,
    identity text NOT NULL,
    {{key}} bigint,
    stream_partition integer NOT NULL,
    stream_offset bigint NOT NULL,
    reason text,
    version_at timestamptz,
    PRIMARY KEY (generation_id, kind, identity),
    FOREIGN KEY (generation_id) REFERENCES generation ON DELETE CASCADE,
    CHECK (kind IN ('pending', 'rejected', 'deleted', 'moved'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX generation_excluded_key ON generation_excluded (generation_id, {{key}});
GRANT SELECT (generation_id, kind, reason, {{key}}, version_at, stream_partition, stream_offset)
   ON generation_excluded TO integrity;
GRANT SELECT ON generation_excluded TO stream;
GRANT SELECT, INSERT, UPDATE, DELETE ON generation_excluded TO batch;
COMMENT ON TABLE generation_excluded IS 'Records of the day that are not rows: pending, rejected, deleted or moved.';
COMMENT ON COLUMN generation_excluded.version_at IS
    'Of a {{stream}} that was deleted or has moved: the version that says so. An older one of it is not served again.';

CREATE TABLE rebuild_run (
    generation_id bigint NOT NULL,
    day date NOT NULL,
    run_id text NOT NULL,
    host text NOT NULL,
    source text NOT NULL,
    phase text NOT NULL,
    records_total bigint NOT NULL,
    records_read bigint NOT NULL DEFAULT 0,
    parts_total integer NOT NULL DEFAULT 0,
    parts_loaded integer NOT NULL DEFAULT 0,
    rows_loaded bigint NOT NULL DEFAULT 0,
    error text,
    started_at timestamptz NOT NULL DEFAULT now(),
    phase_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    PRIMARY KEY (generation_id),
    FOREIGN KEY (generation_id) REFERENCES generation ON DELETE CASCADE,
    CHECK (phase IN ('reading', 'loading', 'finishing', 'built', 'failed')),
    CHECK (source IN ('topic', 'archive'))
);
GRANT SELECT, INSERT, UPDATE, DELETE ON rebuild_run TO batch;
COMMENT ON TABLE rebuild_run IS 'How far each build of a day is, or was when it failed.';

CREATE TABLE detail_final (
    generation_id bigint NOT NULL,
    day date NOT NULL,
    {{served_typed}},
    replayed boolean NOT NULL DEFAULT false
) PARTITION BY RANGE (day, generation_id);
GRANT SELECT ON detail_final TO batch, stream;
GRANT SELECT ({{key}}, {{version}}, event_id, stream_partition, stream_offset, table_partition, table_offset,
              kafka_partition, kafka_offset, day, replayed, generation_id)
   ON detail_final TO integrity;
COMMENT ON TABLE detail_final IS
    'Batch layer: the rows of each rebuilt day, one partition a generation; those of a day are neighbours.';

CREATE TABLE detail_empty (
    generation_id bigint NOT NULL,
    day date NOT NULL,
    {{served_typed}},
    replayed boolean NOT NULL
);
COMMENT ON TABLE detail_empty IS
    'Always empty. Beside it in the view, a day''s generation is chosen while the query runs, also where planning'
    ' leaves one.';

CREATE TABLE detail_live (
    {{served_typed}},
    day date,
    deleted boolean NOT NULL DEFAULT false,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ({{key}}),
    CONSTRAINT detail_live_has_a_year CHECK ((day >= '0001-01-01'::date) AND (day <= '9999-12-31'::date))
) WITH (fillfactor = 70, vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX detail_live_day ON detail_live (day, {{key}});
GRANT SELECT, INSERT, UPDATE, DELETE ON detail_live TO batch, stream;
GRANT SELECT ({{key}}, {{version}}, event_id, stream_partition, stream_offset, table_partition, table_offset,
              kafka_partition, kafka_offset, day, deleted, written_at)
   ON detail_live TO integrity;
COMMENT ON TABLE detail_live IS 'Speed layer: the newest version of each {{stream}} not yet in a published day.';
COMMENT ON COLUMN detail_live.stream_partition IS
    'Partition of the {{stream}} record this row was made from; -1 less the partition if its topic was replaced since.';
COMMENT ON COLUMN detail_live.stream_offset IS
    'Offset of the {{stream}} record this row was made from; less 10^17 if its topic was replaced since.';
COMMENT ON COLUMN detail_live.deleted IS 'The {{stream}} was deleted; the row hides it until its day is rebuilt.';

CREATE TABLE detail_covered (
    {{served_typed}},
    day date NOT NULL,
    deleted boolean NOT NULL,
    written_at timestamptz NOT NULL,
    generation_id bigint NOT NULL,
    covered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day, {{key}})
);
CREATE INDEX detail_covered_key ON detail_covered ({{key}});
CREATE INDEX detail_covered_undoable ON detail_covered (day) WHERE (NOT deleted);
GRANT SELECT, INSERT, UPDATE ON detail_covered TO stream;
GRANT SELECT, INSERT, UPDATE, DELETE ON detail_covered TO batch;
GRANT SELECT ({{key}}, {{version}}, event_id, stream_partition, stream_offset, table_partition, table_offset,
              kafka_partition, kafka_offset, day, deleted, generation_id,
              covered_at)
   ON detail_covered TO integrity;
COMMENT ON TABLE detail_covered IS
    'Live rows that the published generation covers, moved out of the way of readers: an undo brings them back.';
COMMENT ON COLUMN detail_covered.generation_id IS 'The generation whose cut covered the row.';

CREATE TABLE detail_correction (
    generation_id bigint NOT NULL,
    day date NOT NULL,
    {{key}} bigint NOT NULL,
    class text NOT NULL,
    shown jsonb,
    rebuilt jsonb,
    PRIMARY KEY (generation_id, {{key}}, class),
    FOREIGN KEY (generation_id) REFERENCES generation ON DELETE CASCADE,
    CHECK (class IN ('duplicate', 'missing', 'recovered_from_fallback', '{{table}}_version_changed', 'late', 'rejected',
                     'pending', 'deleted', 'moved', 'column_added', 'unexplained'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX detail_correction_day ON detail_correction (day);
GRANT SELECT, INSERT, UPDATE, DELETE ON detail_correction TO batch;
COMMENT ON TABLE detail_correction IS 'Every difference between what was shown of a day and what was rebuilt.';

CREATE TABLE day_publication (
    day date NOT NULL,
    generation_id bigint,
    cut jsonb,
    status text NOT NULL DEFAULT 'provisional',
    raw_distinct bigint,
    row_count bigint,
    pending_count bigint,
    rejected_count bigint,
    content_hash text,
    published_at timestamptz,
    certified_at timestamptz,
    held_reason text,
    undoable_since timestamptz,
    stream_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, '{{stream}}')) STORED,
    table_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, '{{table}}')) STORED,
    moved_at timestamptz,
    PRIMARY KEY (day),
    FOREIGN KEY (generation_id) REFERENCES generation,
    CHECK (status IN ('provisional', 'rebuilt', 'certified'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE ON day_publication TO stream;
GRANT SELECT, INSERT, UPDATE, DELETE ON day_publication TO batch;
GRANT SELECT (day, generation_id) ON day_publication TO integrity;
COMMENT ON TABLE day_publication IS 'Which generation of a day the view shows.';
COMMENT ON COLUMN day_publication.held_reason IS
    'Why a person undid the last publication; the nightly run leaves the day alone until one is made by hand.';
COMMENT ON COLUMN day_publication.undoable_since IS
    'What the day showed before then cannot be shown again: live rows that were covered earlier are gone.';
COMMENT ON COLUMN day_publication.stream_ends IS 'The cut of topic {{stream}}, by partition; element 1 is partition 0.';
COMMENT ON COLUMN day_publication.table_ends IS 'The cut of topic {{table}}, by partition; element 1 is partition 0.';
COMMENT ON COLUMN day_publication.moved_at IS 'When the day last began to show another generation, or none.';

CREATE TABLE publication (
    id bigint GENERATED ALWAYS AS IDENTITY,
    day date NOT NULL,
    action text NOT NULL,
    from_generation_id bigint,
    to_generation_id bigint,
    reason text,
    made_by text NOT NULL,
    covered_rows bigint NOT NULL,
    restored_rows bigint NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id),
    CHECK (action IN ('publish', 'undo', 'redo'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX publication_day ON publication (day, id);
GRANT SELECT ON publication TO integrity;
GRANT SELECT, INSERT ON publication TO batch;
COMMENT ON TABLE publication IS 'Every change of what a day shows: from which generation to which, by whom and why.';
COMMENT ON COLUMN publication.from_generation_id IS 'Null: the speed layer''s rows alone.';
COMMENT ON COLUMN publication.to_generation_id IS 'Null: the speed layer''s rows alone.';

CREATE TABLE day_certificate (
    day date NOT NULL,
    generation_id bigint NOT NULL,
    term text NOT NULL,
    position integer NOT NULL,
    value text NOT NULL,
    query text NOT NULL,
    note text NOT NULL,
    counted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation_id, term),
    FOREIGN KEY (generation_id) REFERENCES generation ON DELETE CASCADE
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX day_certificate_day ON day_certificate (day);
GRANT SELECT ON day_certificate TO analyst, integrity;
GRANT SELECT, INSERT, UPDATE, DELETE ON day_certificate TO batch;
COMMENT ON TABLE day_certificate IS 'What a published day was certified by: each term, and the query that counts it.';
COMMENT ON COLUMN day_certificate.value IS 'A count, or the hash, as text.';
COMMENT ON COLUMN day_certificate.query IS
    'Run it to count the term again: SQL as role batch, or a call to a gateway where it begins with GET.';

CREATE TABLE dirty_day (
    day date NOT NULL,
    cause text NOT NULL,
    count bigint NOT NULL,
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day, cause)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE, DELETE ON dirty_day TO batch, stream;
COMMENT ON TABLE dirty_day IS 'Published days that something reached afterwards, with cause and count.';

CREATE TABLE gateway_store (
    store_id uuid NOT NULL,
    url text NOT NULL,
    first_seen_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    waiting bigint NOT NULL,
    set_aside bigint NOT NULL,
    lost bigint NOT NULL,
    given_up_at timestamptz,
    given_up_by text,
    reason text,
    PRIMARY KEY (store_id)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE ON gateway_store TO batch;
GRANT SELECT ON gateway_store TO integrity;
COMMENT ON TABLE gateway_store IS
    'Fallback stores of gateways, as they last answered. One that no longer answers may have taken events along.';
COMMENT ON COLUMN gateway_store.given_up_at IS
    'When a person accepted that the events of a missing store are lost; null again once it answers.';

CREATE TABLE acknowledged_day (
    day date NOT NULL,
    reason text NOT NULL,
    made_by text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE, DELETE ON acknowledged_day TO batch;
GRANT SELECT, DELETE ON acknowledged_day TO stream;
COMMENT ON TABLE acknowledged_day IS
    'Days that a person leaves as they are, by whom and why, until a record reaches them.';

CREATE TABLE unchecked_day (
    day date NOT NULL,
    request bigint GENERATED ALWAYS AS IDENTITY,
    has_moved boolean NOT NULL DEFAULT true,
    PRIMARY KEY (day)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE, DELETE ON unchecked_day TO batch;
COMMENT ON TABLE unchecked_day IS
    'Days that are to be compared with the other published days and with late {{table}}s: their pointer moved, or'
    ' versions of keys of the table came late.';
COMMENT ON COLUMN unchecked_day.request IS 'Another one each time the day is entered, also while it is checked.';
COMMENT ON COLUMN unchecked_day.has_moved IS
    'False if only versions of keys of the table came late since the day was checked: it is not compared with the'
    ' other days.';

CREATE TABLE day_attempt (
    day date NOT NULL,
    run_id text NOT NULL,
    runs integer NOT NULL DEFAULT 1,
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON day_attempt TO batch;
COMMENT ON TABLE day_attempt IS
    'Days that were begun since they were last published: the last run, and how many runs.';

CREATE TABLE late_version (
    topic_id text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    {{table_key}} bigint NOT NULL,
    version_at timestamptz NOT NULL,
    PRIMARY KEY (topic_id, partition, "offset")
);
GRANT SELECT, INSERT, DELETE ON late_version TO batch;
COMMENT ON TABLE late_version IS
    'Versions of keys of the table that came after the cut of a kept generation and are no newer than its newest row.';

CREATE TABLE searched_generation (
    generation_id bigint NOT NULL,
    PRIMARY KEY (generation_id),
    FOREIGN KEY (generation_id) REFERENCES generation ON DELETE CASCADE
);
GRANT SELECT, INSERT, DELETE ON searched_generation TO batch;
COMMENT ON TABLE searched_generation IS
    'Generations from whose cut on the {{table}}s'' topic was searched for late versions, up to its place in the'
    ' ledger.';

CREATE TABLE offset_ledger (
    consumer text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic_id, partition)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT ON offset_ledger TO integrity;
GRANT SELECT, INSERT, UPDATE ON offset_ledger TO batch;
GRANT SELECT, INSERT, UPDATE, DELETE ON offset_ledger TO stream;
GRANT SELECT ON offset_ledger TO integrity;
COMMENT ON TABLE offset_ledger IS 'The next offset to take, committed with the data it stands for.';
COMMENT ON COLUMN offset_ledger.consumer IS
    'join, serve, archive or late_version; or replaced: before next_offset {{output}} was made from a topic {{stream}}'
    ' that was replaced since; replaced and a number: or from a partition of it that lost its last records since.';

CREATE TABLE ledger_repair (
    id bigint GENERATED ALWAYS AS IDENTITY,
    consumer text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    from_topic_id text NOT NULL,
    from_offset bigint,
    to_topic_id text NOT NULL,
    to_offset bigint NOT NULL,
    reason text NOT NULL,
    repaired_by text NOT NULL,
    repaired_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id)
);
GRANT SELECT ON ledger_repair TO batch;
GRANT SELECT, INSERT ON ledger_repair TO stream;
COMMENT ON TABLE ledger_repair IS
    'Every entry of the offset ledger that a person moved, from where to where, and why.';

CREATE FUNCTION current_timeline() RETURNS text
LANGUAGE sql
RETURN (SELECT CASE WHEN NOT pg_is_in_recovery()
                    THEN system_identifier::text || '/'
                         || ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END
          FROM pg_control_system());
COMMENT ON FUNCTION current_timeline IS
    'System identifier and timeline that PostgreSQL writes now; both outlive a restart. Null on a standby.';
REVOKE EXECUTE ON FUNCTION current_timeline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION current_timeline TO gateway, stream, batch;

CREATE TABLE database_timeline (
    timeline text NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    replayed_until timestamptz,
    reconciled_at timestamptz,
    PRIMARY KEY (timeline)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, UPDATE (first_seen_at, reconciled_at) ON database_timeline TO gateway;
GRANT SELECT ON database_timeline TO stream, batch;
GRANT SELECT (first_seen_at) ON database_timeline TO integrity;
COMMENT ON TABLE database_timeline IS
    'Timelines on which the database was written: each one after the first is a promoted standby or a restored backup.';
COMMENT ON COLUMN database_timeline.timeline IS 'As current_timeline() returns it.';
COMMENT ON COLUMN database_timeline.first_seen_at IS
    'When the first session of the pipeline wrote on it, or a restore that did not change it was noted.';
COMMENT ON COLUMN database_timeline.replayed_until IS
    'Commit time, by the old primary''s clock, of the last transaction that was replayed, and no later than the newest'
    ' row of the site; later ones are lost. Null if not known.';
COMMENT ON COLUMN database_timeline.reconciled_at IS
    'When `pipeline gateway reconcile` had written back the rows that were lost; null: not yet.';
INSERT INTO database_timeline (timeline, reconciled_at) VALUES (current_timeline(), clock_timestamp());

CREATE FUNCTION note_timeline(is_restored boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    present CONSTANT text := current_timeline();
    has_site CONSTANT boolean := to_regclass('site.member') IS NOT NULL;
    replayed timestamptz := CASE WHEN NOT is_restored THEN pg_last_xact_replay_timestamp() END;
BEGIN
    IF present IS NULL OR current_setting('transaction_read_only')::boolean
       OR NOT is_restored AND EXISTS (SELECT FROM database_timeline WHERE timeline = present) THEN
        RETURN present;
    END IF;
    -- sessions that come meanwhile wait until no lost id can be given again
    LOCK TABLE database_timeline IN SHARE ROW EXCLUSIVE MODE;
    IF NOT is_restored AND EXISTS (SELECT FROM database_timeline WHERE timeline = present) THEN
        RETURN present;
    END IF;
    -- by chance: two restores of one state must not give the same ids
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass,
                   COALESCE(last_value, 0) + 1000000 + floor(1000000000 * random())::bigint)
       FROM pg_sequences WHERE schemaname IN ('public', 'site');
    IF has_site AND replayed IS NOT NULL THEN
        -- the server replayed more than this database has if the database is a dump; null if it has no row
        SELECT CASE WHEN newest IS NOT NULL THEN LEAST(replayed, newest) END INTO replayed
          FROM (SELECT greatest((SELECT max(modified_at) FROM site.member),
                                (SELECT max(modified_at) FROM site.board_document)) AS newest) site_rows;
    END IF;
    INSERT INTO database_timeline (timeline, replayed_until, reconciled_at)
    VALUES (present, replayed,
            -- without the site's tables, the stream writes back all that was lost: it reads the topics again
            CASE WHEN NOT has_site THEN clock_timestamp() END)
    ON CONFLICT (timeline) DO UPDATE
       SET first_seen_at = excluded.first_seen_at, replayed_until = NULL, reconciled_at = excluded.reconciled_at;
    RETURN present;
END
$$;
COMMENT ON FUNCTION note_timeline IS
    'Returns the current timeline. The first call on a timeline notes it, and moves every sequence ahead, by 1,000,000'
    ' and a random number below a billion, so that ids of lost rows are not given again. is_restored: notes it again,'
    ' after a restore that did not change it. Null on a standby.';
REVOKE EXECUTE ON FUNCTION note_timeline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION note_timeline TO gateway, stream, batch;

CREATE TABLE stream_driver (
    query text NOT NULL,
    epoch bigint NOT NULL,
    driver_id text NOT NULL,
    host text NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    timeline text,
    PRIMARY KEY (query)
);
GRANT SELECT ON stream_driver TO batch;
GRANT SELECT, INSERT, UPDATE ON stream_driver TO stream;
COMMENT ON TABLE stream_driver IS 'Which driver of a query may write: the one that took the lease last.';
COMMENT ON COLUMN stream_driver.epoch IS 'Grows with every driver: one that holds an older epoch writes no more.';
COMMENT ON COLUMN stream_driver.ended_at IS 'When the driver let go of the lease; null while it has it, or died.';
COMMENT ON COLUMN stream_driver.timeline IS 'The timeline of the database on which the driver took the lease.';

CREATE TABLE stream_progress (
    query text NOT NULL,
    driver_id text NOT NULL,
    batch_id bigint,
    input_rows bigint NOT NULL DEFAULT 0,
    duration_ms bigint,
    total_rows bigint NOT NULL DEFAULT 0,
    offsets jsonb,
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    epoch bigint,
    input_rate double precision,
    processed_rate double precision,
    lag_records bigint,
    lag_s double precision,
    phases jsonb,
    metrics jsonb,
    waiting_for text,
    watermark timestamptz,
    PRIMARY KEY (query)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT ON stream_progress TO batch, integrity;
GRANT SELECT, INSERT, UPDATE, DELETE ON stream_progress TO stream;
COMMENT ON TABLE stream_progress IS 'What each streaming query last did, and when its driver was last alive.';
COMMENT ON COLUMN stream_progress.input_rate IS 'Records a second that reached the topic, over the last 15 s.';
COMMENT ON COLUMN stream_progress.processed_rate IS
    'Records a second that were taken while batches ran, over the last 15 s.';
COMMENT ON COLUMN stream_progress.lag_records IS 'Records of the topic not taken yet.';
COMMENT ON COLUMN stream_progress.lag_s IS
    'How long the first record not taken yet has waited, at most; 0 when all are taken, null when not known.';
COMMENT ON COLUMN stream_progress.phases IS 'Seconds of the last batch by phase.';
COMMENT ON COLUMN stream_progress.metrics IS
    'Counts since the start of the driver, and the size of the {{table}} table.';
COMMENT ON COLUMN stream_progress.waiting_for IS 'What the query waits for, and since when; null while it works.';
COMMENT ON COLUMN stream_progress.watermark IS
    'What reached the topic before this is taken, its results are written; null when not known. It outlives drivers.';

CREATE TABLE stream_watermark (
    at timestamptz NOT NULL,
    watermark timestamptz NOT NULL,
    PRIMARY KEY (at)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, DELETE ON stream_watermark TO stream;
COMMENT ON TABLE stream_watermark IS
    'Watermarks of query join in the past six hours: the older, the fewer. What is served then follows from it.';

CREATE TABLE stream_trial (
    consumer text NOT NULL,
    topic_id text NOT NULL,
    at jsonb NOT NULL,
    size integer,
    failures integer NOT NULL,
    rejected integer NOT NULL,
    reason text,
    tried_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic_id)
);
GRANT SELECT ON stream_trial TO batch;
GRANT SELECT, INSERT, UPDATE ON stream_trial TO stream;
COMMENT ON TABLE stream_trial IS 'Where each query last began, and what failed there; kept over drivers that end.';
COMMENT ON COLUMN stream_trial.size IS 'How many offsets are tried at a time; null while batches are taken whole.';
COMMENT ON COLUMN stream_trial.failures IS
    'How often the present step failed; while size is null, drivers that began here and ended without a word.';
COMMENT ON COLUMN stream_trial.rejected IS 'Records in a row that became rejects because they could not be taken.';

CREATE TABLE stream_delivery (
    since timestamptz PRIMARY KEY DEFAULT now(),
    delivery text NOT NULL CHECK (delivery IN ('at_least_once', 'exactly_once'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT ON stream_delivery TO stream;
COMMENT ON TABLE stream_delivery IS 'How the stream has delivered to {{output}}, since when: STREAM_DELIVERY.';

CREATE TABLE pending_record (
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    {{key}} bigint NOT NULL,
    {{table_key}} bigint NOT NULL,
    day date NOT NULL,
    key bytea,
    value bytea NOT NULL,
    kafka_timestamp timestamptz,
    event_id text,
    accepted_at timestamptz,
    pending_since timestamptz NOT NULL DEFAULT now(),
    version_at timestamptz NOT NULL,
    sent_at timestamptz,
    traceparent text,
    covered_by bigint,
    hides boolean NOT NULL DEFAULT true,
    page bigint,
    PRIMARY KEY (topic, partition, "offset")
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX pending_record_key ON pending_record ({{key}});
CREATE INDEX pending_record_table_key ON pending_record ({{table_key}});
GRANT SELECT, UPDATE (covered_by, hides), DELETE ON pending_record TO batch;
GRANT SELECT (partition, "offset", {{key}}, {{table_key}}, day, event_id, pending_since, version_at, sent_at,
              covered_by)
   ON pending_record TO integrity;
GRANT SELECT, INSERT, UPDATE, DELETE ON pending_record TO stream;
COMMENT ON TABLE pending_record IS 'Records whose {{table}} is not known yet, whole, until the {{table}} comes.';
COMMENT ON COLUMN pending_record.version_at IS 'The version of the {{stream}} that waits.';
COMMENT ON COLUMN pending_record.traceparent IS 'The trace of the request that made it; null if it belongs to none.';
COMMENT ON COLUMN pending_record.sent_at IS 'When it was sent to {{output}}; the row goes when that is served.';
COMMENT ON COLUMN pending_record.page IS
    'The transaction that sends it with exactly-once delivery: it was sent if Kafka has committed this number.';
COMMENT ON COLUMN pending_record.covered_by IS
    'The generation that its day shows, if it has this version of the {{stream}} or a newer one. Null while it waits.';
COMMENT ON COLUMN pending_record.hides IS
    'False if {{view}} can have no version of the {{stream}}: while the record waits, there is nothing to hide.';

CREATE TABLE reject (
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    reason text NOT NULL,
    key bytea,
    value bytea,
    kafka_timestamp timestamptz,
    rejected_by text NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, partition, "offset")
);
GRANT SELECT, INSERT, UPDATE, DELETE ON reject TO batch, stream;
GRANT SELECT (topic, partition, "offset", key, reason, rejected_at) ON reject TO integrity;
COMMENT ON TABLE reject IS 'Records that break their contract, with the reason and the record itself.';

CREATE TABLE forgotten_key (
    {{table_key}} bigint NOT NULL,
    reason text NOT NULL,
    made_by text NOT NULL,
    stream_keys bigint[] NOT NULL DEFAULT '{}',
    removed jsonb NOT NULL DEFAULT '{}',
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ({{table_key}})
);
GRANT SELECT ON forgotten_key TO batch;
GRANT SELECT ({{table_key}}, stream_keys) ON forgotten_key TO gateway;
GRANT SELECT (stream_keys, reason, last_at) ON forgotten_key TO integrity;
COMMENT ON TABLE forgotten_key IS
    'Keys of the table whose data were removed on request. Rebuilds leave out their {{stream}}s, wherever raw still has'
    ' them.';
COMMENT ON COLUMN forgotten_key.reason IS 'Why, as the person who ran the command wrote it; no personal data.';
COMMENT ON COLUMN forgotten_key.stream_keys IS 'Keys of its {{stream}}s that were found: they get tombstones.';
COMMENT ON COLUMN forgotten_key.removed IS 'How much the last run removed, by place.';

CREATE TABLE archive_batch (
    id bigint GENERATED ALWAYS AS IDENTITY,
    run_id text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    starts jsonb NOT NULL,
    ends jsonb NOT NULL,
    newest jsonb NOT NULL,
    record_count bigint NOT NULL,
    gap jsonb NOT NULL DEFAULT '{}',
    gap_since timestamptz,
    gap_until timestamptz,
    gap_reason text,
    taken_at timestamptz NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (id),
    CHECK ((gap_until IS NULL) = (gap_reason IS NULL))
);
CREATE INDEX archive_batch_topic ON archive_batch (topic, topic_id, id);
GRANT SELECT, INSERT, UPDATE, DELETE ON archive_batch TO batch;
GRANT SELECT (topic, gap_until, taken_at) ON archive_batch TO integrity;
COMMENT ON TABLE archive_batch IS 'Ranges of a topic that are in the archive, in the order they were written.';
COMMENT ON COLUMN archive_batch.starts IS 'First offset a partition.';
COMMENT ON COLUMN archive_batch.ends IS 'End offset (exclusive) a partition.';
COMMENT ON COLUMN archive_batch.newest IS 'Greatest timestamp of a record, ms since 1970, a partition with records.';
COMMENT ON COLUMN archive_batch.gap IS 'Offsets before this batch that are missing here: first and end, a partition.';
COMMENT ON COLUMN archive_batch.gap_since IS 'No missing record is older; null: none was ever archived before.';
COMMENT ON COLUMN archive_batch.gap_until IS 'No missing record is newer; null: none is missing before this batch.';
COMMENT ON COLUMN archive_batch.gap_reason IS 'Why they are missing: no archive yet, or a person accepted it.';
COMMENT ON COLUMN archive_batch.taken_at IS 'When the ends were looked up.';

CREATE TABLE archive_file (
    batch_id bigint NOT NULL,
    kind text NOT NULL,
    day date,
    path text NOT NULL,
    record_count bigint NOT NULL,
    byte_count bigint NOT NULL,
    first_key bigint,
    last_key bigint,
    retired_at timestamptz,
    PRIMARY KEY (path),
    FOREIGN KEY (batch_id) REFERENCES archive_batch (id),
    CHECK (kind IN ('records', 'versions', 'places'))
);
CREATE INDEX archive_file_batch ON archive_file (batch_id);
CREATE INDEX archive_file_day ON archive_file (kind, day);
GRANT SELECT, INSERT, UPDATE, DELETE ON archive_file TO batch;
COMMENT ON TABLE archive_file IS 'Parquet files of the archive. A file that is not listed does not belong to it.';
COMMENT ON COLUMN archive_file.kind IS
    'records: raw, as Kafka had them; versions: of the table, by the column; places: where the records of the'
    ' output topic are, and what they were made from.';
COMMENT ON COLUMN archive_file.day IS 'The day of the records in it; null for tombstones, rare days and versions.';
COMMENT ON COLUMN archive_file.path IS 'Below the folder of the archive.';
COMMENT ON COLUMN archive_file.first_key IS 'Least id in it; null when no record has a readable one.';
COMMENT ON COLUMN archive_file.last_key IS 'Greatest id in it.';
COMMENT ON COLUMN archive_file.retired_at IS
    'When other files took its place. It is removed a day later: until then somebody may be reading it.';

CREATE TABLE alert (
    id bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    subject text NOT NULL,
    severity text NOT NULL,
    message text NOT NULL,
    runbook text NOT NULL,
    since timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    PRIMARY KEY (id),
    CHECK (severity IN ('warning', 'critical'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE UNIQUE INDEX alert_open ON alert (name, subject) WHERE (closed_at IS NULL);
GRANT SELECT, INSERT, UPDATE, DELETE ON alert TO batch;
GRANT SELECT ON alert TO integrity, analyst;
COMMENT ON TABLE alert IS 'What watch_pipeline found: one row from the first finding until it is gone.';
COMMENT ON COLUMN alert.subject IS 'A day, a gateway, a query or a DAG; empty: the pipeline.';
COMMENT ON COLUMN alert.message IS 'State, value and remedy, as last found.';
COMMENT ON COLUMN alert.runbook IS 'The runbook, by its name in docs/runbooks.';
COMMENT ON COLUMN alert.since IS 'Since when it lasts, as far as that was known when it was found.';
COMMENT ON COLUMN alert.closed_at IS 'When it was no longer found; null while it lasts.';

CREATE TABLE alert_notice (
    alert_id bigint NOT NULL,
    event text NOT NULL,
    channel text NOT NULL,
    tries integer NOT NULL DEFAULT 0,
    sent_at timestamptz,
    PRIMARY KEY (alert_id, event, channel),
    FOREIGN KEY (alert_id) REFERENCES alert ON DELETE CASCADE,
    CHECK (event IN ('opened', 'closed'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX alert_notice_unsent ON alert_notice (channel) WHERE (sent_at IS NULL);
GRANT SELECT, INSERT, UPDATE, DELETE ON alert_notice TO batch;
COMMENT ON TABLE alert_notice IS 'The notices of alerts that begin and end, one of each channel.';
COMMENT ON COLUMN alert_notice.tries IS 'How often the channel did not take it.';
COMMENT ON COLUMN alert_notice.sent_at IS 'When the channel took it; null: the next watch sends it.';

-- Records of the stream that a system of record in this database wrote: the key, and the day field as text. The
-- certificate of a day accounts for them. Without a system of record the view is empty.
CREATE VIEW recorded AS
SELECT NULL::bigint AS {{key}}, NULL::text COLLATE "C" AS recorded_at WHERE false;
COMMENT ON VIEW recorded IS 'Records that the system of record wrote, and that the pipeline accounts for.';
GRANT SELECT ON recorded TO batch;

-- Functions that the view is made of.

-- Runs with the rights of its owner: readers of the view may not read the table.
CREATE FUNCTION was_pending(generation_id bigint, key bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = public, pg_temp
AS $$ SELECT EXISTS (SELECT 1 FROM generation_excluded e
                      WHERE e.generation_id = $1 AND e.kind = 'pending' AND e.{{key}} = $2) $$;
COMMENT ON FUNCTION was_pending IS 'True if the {{stream}} waited for its {{table}} when the generation was built.';

-- One expression, which the planner puts in the place of the call. was_pending is asked of few rows only.
CREATE FUNCTION is_covered(generation_id bigint, stream_ends bigint[], table_ends bigint[], key bigint,
                           stream_partition integer, stream_offset bigint, table_partition integer,
                           table_offset bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN COALESCE(stream_offset < stream_ends[stream_partition + 1], false)
       AND NOT (COALESCE(table_offset >= COALESCE(table_ends[table_partition + 1], 0), false)
                AND was_pending(generation_id, key));
COMMENT ON FUNCTION is_covered IS
    'True if the generation was built from the row''s record: the row is below its cut, and its {{stream}} was not'
    ' pending there with a {{table}} that came later. False without a generation.';

CREATE FUNCTION ordered_offset(stream_offset bigint, stream_ends bigint[]) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN stream_ends IS NULL THEN stream_offset - 100000000000000000 ELSE stream_offset END;
COMMENT ON FUNCTION ordered_offset IS
    'The offset of a {{stream}} record, which orders its versions: negative for a record of a topic that was replaced,'
    ' so that every record of the topic made since is newer. A generation without stream_ends is of such a topic.';

-- Views, and functions that take what a view can not. Those with the definition's columns stand in view.sql.

CREATE FUNCTION heartbeat_age_s(heartbeat_at timestamptz, present timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN abs(extract(epoch FROM present - heartbeat_at))::double precision;
COMMENT ON FUNCTION heartbeat_age_s IS
    'Seconds since a heartbeat. One from the future was written while the server''s clock was ahead: it is no sign of'
    ' life, since a driver that is alive replaces it within a second.';

CREATE VIEW freshness AS
SELECT s.heartbeat_at,
       s.lag_records,
       extract(epoch FROM s.heartbeat_at - w.shown_until)::double precision AS lag_s,
       w.shown_until,
       (SELECT max(updated_at) FROM offset_ledger WHERE consumer = 'serve') AS last_served_at,
       (SELECT value FROM pipeline_setting WHERE name = 'timezone') AS timezone,
       COALESCE(s.query_count = 2 AND heartbeat_age_s(s.heartbeat_at, now()) < 10, false) AS is_alive
  FROM (SELECT count(*) AS query_count,
               min(heartbeat_at) AS heartbeat_at,
               CASE WHEN count(*) = count(lag_records) THEN sum(lag_records)::bigint END AS lag_records,
               max(watermark) FILTER (WHERE query = 'serve') AS served_until
          FROM stream_progress
         WHERE query IN ('join', 'serve')) s
 CROSS JOIN LATERAL (SELECT max(j.watermark) AS shown_until
                       FROM stream_watermark j WHERE j.at <= s.served_until AND j.watermark <= now()) w;
COMMENT ON VIEW freshness IS
    'One row: how far the speed layer is. A {{stream}} that waits for its {{table}} is not in it.';
COMMENT ON COLUMN freshness.heartbeat_at IS 'When the speed layer last said that it is alive; it does every second.';
COMMENT ON COLUMN freshness.lag_records IS 'Records in Kafka that it has not taken, when it said so.';
COMMENT ON COLUMN freshness.lag_s IS
    'How much older shown_until is than the heartbeat, in seconds: a few while nothing waits; null when not known.';
COMMENT ON COLUMN freshness.shown_until IS
    'What reached Kafka before this is shown; null when not known: before the stream first caught up, and when its'
    ' query serve is more than six hours behind.';
COMMENT ON COLUMN freshness.last_served_at IS 'When it last wrote rows.';
COMMENT ON COLUMN freshness.timezone IS 'The time zone of column day.';
COMMENT ON COLUMN freshness.is_alive IS
    'True if the speed layer said so in the ten seconds before the transaction began.';

CREATE FUNCTION is_fresh(max_age interval) RETURNS boolean
LANGUAGE sql STABLE
RETURN (SELECT COALESCE(f.shown_until >= now() - max_age, false) FROM freshness f);
COMMENT ON FUNCTION is_fresh IS
    'True if everything is shown that reached Kafka more than max_age before the transaction began. A stream that has'
    ' nothing to do is some seconds behind its own heartbeat. False when it is not known.';

-- A view that counted the generation's rows would open the tables of all days; a custom plan opens those of one. A day
-- with nothing on top opens none, so that the status of all days takes few locks.
CREATE FUNCTION shown_rows(of_day date) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_variable
DECLARE
    p day_publication;
    on_top bigint[];
    alive bigint;
    hidden bigint;
    replaced bigint := 0;
BEGIN
    SELECT * INTO p FROM day_publication WHERE day = of_day;
    SELECT array_agg(l.{{key}}) FILTER (WHERE p.generation_id IS NOT NULL), count(*) FILTER (WHERE NOT l.deleted)
      INTO on_top, alive
      FROM detail_live l
     WHERE l.day = of_day
       AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                          l.stream_offset, l.table_partition, l.table_offset);
    IF on_top IS NOT NULL THEN
        SELECT count(*) INTO replaced
          FROM detail_final f
         WHERE f.day = of_day AND f.generation_id = p.generation_id AND f.{{key}} = ANY (on_top);
    END IF;
    SELECT count(*) INTO hidden
      FROM detail_live l
     WHERE l.day = of_day AND NOT l.deleted
       AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                          l.stream_offset, l.table_partition, l.table_offset)
       AND EXISTS (SELECT 1 FROM pending_record w WHERE w.{{key}} = l.{{key}} AND w.covered_by IS NULL);
    IF EXISTS (SELECT 1 FROM generation g JOIN pending_record w ON w.{{key}} BETWEEN g.first_key AND g.last_key
                WHERE g.id = p.generation_id AND w.covered_by IS NULL) THEN
        SELECT hidden + count(*) INTO hidden
          FROM detail_final f
         WHERE f.day = of_day AND f.generation_id = p.generation_id
           AND f.{{key}} <> ALL (COALESCE(on_top, '{}'))
           AND EXISTS (SELECT 1 FROM pending_record w WHERE w.{{key}} = f.{{key}} AND w.covered_by IS NULL);
    END IF;
    RETURN CASE WHEN p.day IS NOT NULL THEN COALESCE(p.row_count, 0) - replaced + alive - hidden END;
END
$$;
COMMENT ON FUNCTION shown_rows IS 'How many rows of the day {{view}} shows; null for a day that it does not have.';

CREATE VIEW waiting_record AS
SELECT w.{{key}}, w.day, w.pending_since AS since FROM pending_record w WHERE w.covered_by IS NULL
 UNION ALL
SELECT e.{{key}}, p.day, p.published_at
  FROM day_publication p JOIN generation_excluded e ON e.generation_id = p.generation_id AND e.kind = 'pending'
 WHERE p.pending_count > 0
   AND NOT EXISTS (SELECT FROM detail_live l
                    WHERE l.{{key}} = e.{{key}}
                      AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                                         l.stream_offset, l.table_partition, l.table_offset));
GRANT SELECT ON waiting_record TO stream, batch, integrity;
COMMENT ON VIEW waiting_record IS
    '{{stream}}s that wait for their {{table}} now, once or several times: their records wait, or the generation that'
    ' their day shows has them as pending.';

CREATE VIEW day_status AS
SELECT p.day,
       p.status,
       p.raw_distinct,
       COALESCE(p.row_count, 0) AS row_count,
       (SELECT count(DISTINCT w.{{key}}) FROM waiting_record w WHERE w.day = p.day) AS pending_count,
       COALESCE(p.rejected_count, 0) AS rejected_count,
       (SELECT count(*) FROM detail_correction c WHERE c.generation_id = p.generation_id) AS correction_count,
       (SELECT count(*) FROM detail_live l
         WHERE l.day = p.day AND NOT l.deleted
           AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                              l.stream_offset, l.table_partition, l.table_offset)
           AND NOT EXISTS (SELECT FROM pending_record w
                            WHERE w.{{key}} = l.{{key}} AND w.covered_by IS NULL)) AS live_row_count,
       (SELECT COALESCE(sum(d.count), 0)::bigint FROM dirty_day d WHERE d.day = p.day) AS dirty_count,
       p.generation_id,
       p.published_at,
       p.day + (SELECT s.value::integer FROM pipeline_setting s WHERE s.name = 'retention_days')
           AS rebuildable_until,
       shown_rows(p.day) AS shown_rows,
       p.moved_at
  FROM day_publication p;
COMMENT ON VIEW day_status IS 'Status of each day, with the terms of its balance.';
COMMENT ON COLUMN day_status.day IS 'Date in the pipeline''s time zone.';
COMMENT ON COLUMN day_status.status IS
    'provisional (speed layer only), rebuilt (published) or certified (its balance adds up).';
COMMENT ON COLUMN day_status.raw_distinct IS
    'Distinct {{stream}}s of the day in the raw topic at the cut, without those deleted or moved.';
COMMENT ON COLUMN day_status.row_count IS 'Rows of the published generation.';
COMMENT ON COLUMN day_status.pending_count IS '{{stream}}s that wait for their {{table}} now: {{view}} shows none.';
COMMENT ON COLUMN day_status.rejected_count IS 'Records that break the contract, one of each {{stream}}.';
COMMENT ON COLUMN day_status.correction_count IS 'Differences the last published rebuild corrected.';
COMMENT ON COLUMN day_status.live_row_count IS 'Rows of the speed layer that are shown on top of the generation.';
COMMENT ON COLUMN day_status.dirty_count IS 'Records that reached the day after it was published.';
COMMENT ON COLUMN day_status.generation_id IS 'The published generation; null while provisional.';
COMMENT ON COLUMN day_status.published_at IS 'When it was published.';
COMMENT ON COLUMN day_status.rebuildable_until IS
    'The first date on which the topics may no longer hold all of the day; records that came late are held for longer,'
    ' and those in the archive for good.';
COMMENT ON COLUMN day_status.shown_rows IS
    'Rows of the day that {{view}} shows: row_count and live_row_count, an edited {{stream}} counted once, without'
    ' those whose newest version waits.';
COMMENT ON COLUMN day_status.moved_at IS
    'When the day last began to show another generation, or none; null if it never showed one.';

CREATE VIEW day_acknowledgement AS
SELECT a.day, a.reason, a.made_by, a.made_at
  FROM acknowledged_day a
 WHERE NOT EXISTS (SELECT FROM day_publication p WHERE p.day = a.day AND p.moved_at > a.made_at)
   AND NOT EXISTS (SELECT FROM dirty_day d WHERE d.day = a.day AND d.last_at > a.made_at);
GRANT SELECT ON day_acknowledgement TO batch, integrity, analyst;
COMMENT ON VIEW day_acknowledgement IS
    'Acknowledged days that show what they showed then, and that no record reached since. The watch leaves them out.';

CREATE VIEW day_trust AS
SELECT d.day,
       d.held_reason,
       d.uncertified_reason,
       d.certified_at,
       d.corrections,
       d.dirty,
       d.duplicate_count,
       concat_ws('; ',
           'held: undone' || CASE WHEN d.undone_by <> 'not said' THEN ' by ' || d.undone_by ELSE '' END
               || ', ' || d.held_reason,
           CASE WHEN d.generation_id IS NULL AND d.undone_by IS NOT NULL THEN 'the stream''s rows alone'
                WHEN d.generation_id IS NULL THEN 'provisional: the stream''s rows, not rebuilt yet'
                ELSE CASE WHEN d.status = 'certified' THEN 'certified'
                          ELSE COALESCE('rebuilt, not certified (' || d.uncertified_reason || ')',
                                        'rebuilt, not certified yet') END
                     || ': ' || to_char(d.row_count, 'FM999,999,999,990')
                     || CASE WHEN d.row_count = 1 THEN ' row, ' ELSE ' rows, ' END
                     || (SELECT to_char(COALESCE(sum(c.count::bigint), 0), 'FM999,999,999,990')
                                || CASE WHEN sum(c.count::bigint) = 1 THEN ' correction' ELSE ' corrections' END
                           FROM jsonb_each_text(d.corrections) c (class, count))
                     || to_char(d.published_at AT TIME ZONE COALESCE(z.value, 'UTC'),
                                ', "published" YYYY-MM-DD HH24:MI') END,
           (SELECT to_char(sum(c.count::bigint), 'FM999,999,999,990')
                   || CASE WHEN sum(c.count::bigint) = 1 THEN ' record' ELSE ' records' END || ' arrived since ('
                   || string_agg(c.count || ' ' || c.cause, ', ' ORDER BY c.cause)
                   || '): the day waits for its next rebuild'
              FROM jsonb_each_text(d.dirty) c (cause, count) WHERE c.cause NOT LIKE 'unread %'),
           (SELECT to_char(sum(c.count::bigint), 'FM999,999,999,990')
                   || CASE WHEN sum(c.count::bigint) = 1 THEN ' row' ELSE ' rows' END
                   || ' of the stream that no rebuild can read any more'
              FROM jsonb_each_text(d.dirty) c (cause, count) WHERE c.cause LIKE 'unread %'),
           CASE WHEN d.is_unchecked THEN 'a check for late records is due' END) AS summary,
       (SELECT CASE WHEN bool_and(v.delivery = 'exactly_once') AND bool_or(v.since <= b.begins)
                    THEN 'exactly_once' ELSE 'at_least_once' END
          FROM (SELECT delivery, since, lead(since, 1, 'infinity') OVER (ORDER BY since) AS ended
                  FROM stream_delivery) v
         CROSS JOIN (SELECT d.day::timestamp AT TIME ZONE COALESCE(z.value, 'UTC') AS begins) b
         WHERE v.ended > b.begins AND v.since <= COALESCE(d.published_at, now())) AS delivery
  FROM (SELECT p.day,
               p.status,
               p.generation_id,
               p.row_count,
               p.published_at,
               p.held_reason,
               (SELECT u.made_by FROM publication u
                 WHERE u.day = p.day AND u.action = 'undo' ORDER BY u.id DESC LIMIT 1) AS undone_by,
               g.uncertified_reason,
               p.certified_at,
               COALESCE((SELECT jsonb_object_agg(c.class, c.count ORDER BY c.class)
                           FROM (SELECT each.class, sum(each.count) AS count
                                   FROM (SELECT class, count(*) AS count FROM detail_correction
                                          WHERE generation_id = p.generation_id GROUP BY class
                                          UNION ALL
                                         SELECT key, value::bigint FROM jsonb_each_text(g.unlisted_corrections)) each
                                  GROUP BY each.class) c), '{}') AS corrections,
               COALESCE((SELECT jsonb_object_agg(d.cause, d.count ORDER BY d.cause)
                           FROM dirty_day d WHERE d.day = p.day), '{}') AS dirty,
               g.duplicate_count,
               EXISTS (SELECT FROM unchecked_day u WHERE u.day = p.day) AS is_unchecked
          FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id) d
  LEFT JOIN pipeline_setting z ON z.name = 'timezone';
COMMENT ON VIEW day_trust IS
    'What stands against trusting a day: corrections by class, what arrived since by cause.';
COMMENT ON COLUMN day_trust.day IS 'Date in the pipeline''s time zone.';
COMMENT ON COLUMN day_trust.held_reason IS 'Why a person undid the last publication; the night leaves the day alone.';
COMMENT ON COLUMN day_trust.uncertified_reason IS 'Why the published generation could not be certified.';
COMMENT ON COLUMN day_trust.certified_at IS 'When it was certified.';
COMMENT ON COLUMN day_trust.corrections IS 'Differences that the published rebuild corrected, counted by class.';
COMMENT ON COLUMN day_trust.dirty IS 'What reached the day after it was published, counted by cause.';
COMMENT ON COLUMN day_trust.duplicate_count IS
    'Records of the output topic beyond the first of their version, as the published rebuild counted them.';
COMMENT ON COLUMN day_trust.summary IS
    'One sentence: whether the day can be trusted, and why. Times are in the pipeline''s time zone.';
COMMENT ON COLUMN day_trust.delivery IS
    'How the stream delivered to {{output}}: exactly_once if it did so from the day''s start to its publication.';

CREATE VIEW day_correction AS
SELECT c.generation_id,
       c.day,
       c.{{key}} AS key,
       c.class,
       (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (d.personal) AND v.value <> 'null'
                                             THEN '"(hidden)"' ELSE v.value END)
          FROM jsonb_each(c.shown) v (name, value)) AS shown,
       (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (d.personal) AND v.value <> 'null'
                                             THEN '"(hidden)"' ELSE v.value END)
          FROM jsonb_each(c.rebuilt) v (name, value)) AS rebuilt,
       ARRAY(SELECT v.name FROM jsonb_each(c.shown) v (name, value)
              WHERE c.rebuilt ? v.name AND c.rebuilt -> v.name <> v.value) AS changed
  FROM detail_correction c
 CROSS JOIN (SELECT ARRAY(SELECT o.described ->> 'name'
                            FROM jsonb_array_elements(s.value::jsonb #> '{output,columns}') o (described)
                           WHERE (o.described ->> 'personal')::boolean) AS personal
               FROM pipeline_setting s WHERE s.name = 'definition') d;
COMMENT ON VIEW day_correction IS
    'Corrections of each generation, before and after, with personal values hidden; empty without a kept definition.';
COMMENT ON COLUMN day_correction.key IS 'The key of the row.';
COMMENT ON COLUMN day_correction.shown IS 'The row that was shown; null if there was none.';
COMMENT ON COLUMN day_correction.rebuilt IS 'The row of the generation; null if it has none.';
COMMENT ON COLUMN day_correction.changed IS 'Columns that differ, personal ones too.';

CREATE FUNCTION generation_difference(of_day date, from_id bigint, to_id bigint, row_limit integer)
    RETURNS TABLE (class text, total bigint, key bigint, before jsonb, after jsonb, changed text[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    kept CONSTANT text[] := ARRAY['event_id', 'stream_partition', 'stream_offset', 'table_partition', 'table_offset',
                                  'kafka_partition', 'kafka_offset', 'generation_id', 'day', 'replayed'];
    names text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
                    WHERE attrelid = 'detail_final'::regclass AND attnum > 0 AND NOT attisdropped
                      AND attname <> ALL (kept));
    personal text[] := (SELECT ARRAY(SELECT o.described ->> 'name'
                                       FROM jsonb_array_elements(s.value::jsonb #> '{output,columns}') o (described)
                                      WHERE (o.described ->> 'personal')::boolean)
                          FROM pipeline_setting s WHERE s.name = 'definition');
BEGIN
    IF personal IS NULL THEN
        RETURN;
    END IF;
    -- of each side only the key and a hash are joined, see compare_rows; the ids are values: two tables are opened
    RETURN QUERY EXECUTE format($query$
WITH differing AS MATERIALIZED (
    SELECT COALESCE(f.key, t.key) AS key, f.key IS NOT NULL AS had, t.key IS NOT NULL AS has
      FROM (SELECT {{key}} AS key, hash_record_extended(ROW(%1$s), 0) AS content FROM detail_final
             WHERE day = %2$L AND generation_id = %3$L) f
      FULL JOIN (SELECT {{key}} AS key, hash_record_extended(ROW(%1$s), 0) AS content FROM detail_final
                  WHERE day = %2$L AND generation_id = %4$L) t ON t.key = f.key
     WHERE f.content IS DISTINCT FROM t.content
), classed AS (
    SELECT CASE WHEN NOT had THEN 'added' WHEN NOT has THEN 'removed' ELSE 'changed' END AS class, key FROM differing
), numbered AS (
    SELECT class, count(*) OVER (PARTITION BY class) AS total, key,
           row_number() OVER (PARTITION BY class ORDER BY key) AS number
      FROM classed
)
SELECT n.class, n.total, n.key, hidden.was, hidden.now,
       ARRAY(SELECT name FROM jsonb_object_keys(sides.was) name WHERE sides.was -> name <> sides.now -> name)
  FROM (SELECT * FROM numbered ORDER BY number, class LIMIT %6$s) n
 CROSS JOIN LATERAL (
       SELECT (SELECT to_jsonb(f.*) - %5$L::text[] FROM detail_final f
                WHERE f.day = %2$L AND f.generation_id = %3$L AND f.{{key}} = n.key) AS was,
              (SELECT to_jsonb(f.*) - %5$L::text[] FROM detail_final f
                WHERE f.day = %2$L AND f.generation_id = %4$L AND f.{{key}} = n.key) AS now) sides
 CROSS JOIN LATERAL (
       SELECT (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (%7$L::text[]) AND v.value <> 'null'
                                                    THEN '"(hidden)"' ELSE v.value END)
                 FROM jsonb_each(sides.was) v (name, value)) AS was,
              (SELECT jsonb_object_agg(v.name, CASE WHEN v.name = ANY (%7$L::text[]) AND v.value <> 'null'
                                                    THEN '"(hidden)"' ELSE v.value END)
                 FROM jsonb_each(sides.now) v (name, value)) AS now) hidden
 ORDER BY n.class, n.key
$query$, names, of_day, from_id, to_id, kept, LEAST(row_limit, 100), personal);
END
$$;
COMMENT ON FUNCTION generation_difference IS
    'Rows that differ between two generations of a day, with the count of their class and personal values hidden; empty'
    ' without a kept definition.';

GRANT SELECT ON freshness TO batch, analyst, analyst_personal;
GRANT SELECT ON day_status TO batch, integrity, analyst, analyst_personal;
GRANT SELECT ON day_trust TO batch, integrity, analyst;
GRANT SELECT ON day_correction TO batch, integrity;
REVOKE EXECUTE ON FUNCTION shown_rows FROM PUBLIC;
GRANT EXECUTE ON FUNCTION shown_rows TO batch, integrity, analyst, analyst_personal;
REVOKE EXECUTE ON FUNCTION is_fresh FROM PUBLIC;
GRANT EXECUTE ON FUNCTION is_fresh TO batch, analyst, analyst_personal;
REVOKE EXECUTE ON FUNCTION generation_difference FROM PUBLIC;
GRANT EXECUTE ON FUNCTION generation_difference TO integrity;

-- A table for each build of a day, made and dropped by functions alone.

CREATE SCHEMA generations;
COMMENT ON SCHEMA generations IS 'A table for each build of a day, made and dropped by these functions alone.';
GRANT USAGE ON SCHEMA generations TO batch;

-- The owner of a table can make its readers run functions. A caller of these functions puts nothing into a statement
-- but the number of a generation, a day, and the bounds of its rows.

CREATE FUNCTION generations.create_table(id bigint, of_day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- checked while it is loaded, so that neither the key nor attaching it reads the table once more
    EXECUTE format('CREATE TABLE generations.detail_final_g%1$s ('
                   'LIKE public.detail_final INCLUDING DEFAULTS INCLUDING CONSTRAINTS,'
                   ' CONSTRAINT detail_final_g%1$s_day CHECK (generation_id = %1$s AND day = %2$L))',
                   id, of_day);
    EXECUTE format('ALTER TABLE generations.detail_final_g%s ALTER COLUMN {{key}} SET NOT NULL', id);
    EXECUTE format('GRANT SELECT, INSERT ON generations.detail_final_g%s TO batch', id);
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE format('GRANT MAINTAIN ON generations.detail_final_g%s TO batch', id);
    END IF;
END
$$;

CREATE FUNCTION generations.index_table_key(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE INDEX detail_final_g%1$s_table_key ON generations.detail_final_g%1$s ({{table_key}})', id);
END
$$;

CREATE FUNCTION generations.index_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX detail_final_g%1$s_pkey ON generations.detail_final_g%1$s ({{key}})', id);
    PERFORM generations.index_table_key(id);
END
$$;

CREATE FUNCTION generations.analyze_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ANALYZE (SKIP_LOCKED) generations.detail_final_g%s', id);
END
$$;

CREATE FUNCTION generations.attach_table(id bigint, of_day date, first_key bigint, last_key bigint,
                                         earliest timestamptz, latest timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE generations.detail_final_g%1$s'
                   ' ADD PRIMARY KEY USING INDEX detail_final_g%1$s_pkey', id);
    IF first_key IS NOT NULL AND earliest IS NOT NULL THEN
        -- a query by key or by time, without a day, is planned without the tables that cannot have its rows
        EXECUTE format('ALTER TABLE generations.detail_final_g%s'
                       ' ADD CHECK ({{key}} BETWEEN %s AND %s AND {{day_from}} BETWEEN %L AND %L)',
                       id, first_key, last_key, earliest, latest);
    END IF;
    EXECUTE format('ALTER TABLE public.detail_final ATTACH PARTITION generations.detail_final_g%1$s'
                   ' FOR VALUES FROM (%2$L, %1$s) TO (%2$L, %3$s)', id, of_day, id + 1);
END
$$;

CREATE FUNCTION generations.drop_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS generations.detail_final_g%s', id);
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA generations FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA generations TO batch;
