"""Tables and columns have the same names in every pipeline; the site's own tables have a schema of their own."""

from alembic import op

revision = "0032"
down_revision = "0031"

# Views and functions name the columns in their text, and PostgreSQL does not rename parameters: they are made again.
DROPS = """
DROP VIEW day_trust, day_status, freshness;
DROP FUNCTION shown_rows, boards_by_id;
DROP VIEW board_detail_masked, board_detail;
DROP FUNCTION is_covered, was_pending, ordered_offset;
DROP FUNCTION generations.create_table, generations.index_table, generations.index_members,
              generations.analyze_table, generations.attach_table, generations.add_bounds,
              generations.validate_bounds, generations.drop_table;
"""

SITE = """
CREATE SCHEMA site;
COMMENT ON SCHEMA site IS 'System of record: what the site''s API last saved.';
ALTER TABLE member SET SCHEMA site;
ALTER TABLE board_document SET SCHEMA site;
ALTER TABLE change_key SET SCHEMA site;
ALTER SEQUENCE member_id_seq SET SCHEMA site;
ALTER SEQUENCE board_id_seq SET SCHEMA site;
GRANT USAGE ON SCHEMA site TO gateway, batch;
CREATE VIEW recorded AS
SELECT id AS board_id, (document ->> 'createdAt') COLLATE "C" AS recorded_at
  FROM site.board_document
 WHERE deleted_at IS NULL;
COMMENT ON VIEW recorded IS 'Records that the system of record wrote, and that the pipeline accounts for.';
GRANT SELECT ON recorded TO batch;
"""

RENAMES = """
DO $$
DECLARE
    columns CONSTANT jsonb := '{
        "board_partition": "stream_partition", "board_offset": "stream_offset", "member_partition": "table_partition",
        "member_offset": "table_offset", "board_ends": "stream_ends", "member_ends": "table_ends",
        "board_ids": "stream_keys", "figures": "metrics"}';
    names CONSTANT text[] := ARRAY[
        ['^board_detail_covered_board$', 'detail_covered_key'],
        ['^generation_excluded_board$', 'generation_excluded_key'],
        ['^pending_board_board$', 'pending_record_key'],
        ['^pending_board_member$', 'pending_record_table_key'],
        ['^board_detail_(live|final|covered|correction|empty)', 'detail_\\1'],
        ['^pending_board', 'pending_record'],
        ['^late_member', 'late_version'],
        ['^forgotten_member', 'forgotten_key']];
    found record;
    renamed text;
BEGIN
    FOR found IN
        SELECT a.attrelid::regclass AS relation, a.attname AS name
          FROM pg_attribute a
          JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
         WHERE c.relnamespace IN ('public'::regnamespace, 'generations'::regnamespace)
           AND columns ? a.attname AND NOT a.attisdropped
         ORDER BY 1, 2
    LOOP
        EXECUTE format('ALTER TABLE %%s RENAME COLUMN %%I TO %%I', found.relation, found.name, columns ->> found.name);
    END LOOP;
    FOR found IN
        SELECT n.conrelid::regclass AS relation, n.conname AS name, 'CONSTRAINT' AS kind
          FROM pg_constraint n WHERE n.connamespace = 'public'::regnamespace AND n.contype <> 'n'
           AND n.conrelid <> 0
        UNION ALL
        SELECT c.oid::regclass, c.relname, CASE c.relkind WHEN 'i' THEN 'INDEX' ELSE 'TABLE' END
          FROM pg_class c
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'i')
           AND NOT EXISTS (SELECT FROM pg_constraint n WHERE n.conindid = c.oid AND n.contype IN ('p', 'u'))
         ORDER BY kind, name
    LOOP
        FOR number IN 1..array_length(names, 1) LOOP
            CONTINUE WHEN found.name !~ names[number][1];
            renamed := regexp_replace(found.name, names[number][1], names[number][2]);
            IF found.kind = 'CONSTRAINT' THEN
                EXECUTE format('ALTER TABLE %%s RENAME CONSTRAINT %%I TO %%I', found.relation, found.name, renamed);
            ELSE
                EXECUTE format('ALTER %%s %%s RENAME TO %%I', found.kind, found.relation, renamed);
            END IF;
            EXIT;
        END LOOP;
    END LOOP;
END
$$;
UPDATE offset_ledger SET consumer = 'late_version' WHERE consumer = 'late_member';
ALTER TABLE stream_driver RENAME COLUMN application TO query;
DELETE FROM stream_driver WHERE query NOT IN ('join', 'serve');
UPDATE pipeline_setting SET name = 'retention_days' WHERE name = 'board_retention_days';
"""

VIEWS_AND_FUNCTIONS = """
-- Functions that the view is made of.

-- Runs with the rights of its owner: readers of the view may not read the table.
CREATE FUNCTION was_pending(generation_id bigint, key bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = public, pg_temp
AS $$ SELECT EXISTS (SELECT 1 FROM generation_excluded e
                      WHERE e.generation_id = $1 AND e.kind = 'pending' AND e.board_id = $2) $$;
COMMENT ON FUNCTION was_pending IS 'True if the board waited for its member when the generation was built.';

-- One expression, which the planner puts in the place of the call. was_pending is asked of few rows only.
CREATE FUNCTION is_covered(generation_id bigint, stream_ends bigint[], table_ends bigint[], key bigint,
                           stream_partition integer, stream_offset bigint, table_partition integer,
                           table_offset bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN COALESCE(stream_offset < stream_ends[stream_partition + 1], false)
       AND NOT (COALESCE(table_offset >= COALESCE(table_ends[table_partition + 1], 0), false)
                AND was_pending(generation_id, key));
COMMENT ON FUNCTION is_covered IS
    'True if the generation was built from the row''s record: the row is below its cut, and its board was not'
    ' pending there with a member that came later. False without a generation.';

CREATE FUNCTION ordered_offset(stream_offset bigint, stream_ends bigint[]) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN stream_ends IS NULL THEN stream_offset - 100000000000000000 ELSE stream_offset END;
COMMENT ON FUNCTION ordered_offset IS
    'The offset of a board record, which orders its versions: negative for a record of a topic that was replaced,'
    ' so that every record of the topic made since is newer. A generation without stream_ends is of such a topic.';

-- Views, and functions that take what a view can not.

CREATE VIEW board_detail AS
SELECT x.board_id, x.member_id, x.nickname, x.city, x.phone, x.title, x.body, x.modified_at, x.created_at,
       x.event_id, x.stream_partition, x.stream_offset, x.table_partition, x.table_offset, x.kafka_partition,
       x.kafka_offset, x.day, x.finality, x.shown_since
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT f.board_id, f.member_id, f.nickname, f.city, f.phone, f.title, f.body, f.modified_at, f.created_at,
              f.event_id, f.stream_partition, f.stream_offset, f.table_partition, f.table_offset, f.kafka_partition,
              f.kafka_offset, f.day, 'final'::text AS finality, p.moved_at AS shown_since
         FROM (SELECT generation_id, day, board_id, member_id, nickname, city, phone, title, body, modified_at,
                created_at, event_id, stream_partition, stream_offset, table_partition, table_offset,
                kafka_partition, kafka_offset
                 FROM detail_final
               UNION ALL
               SELECT generation_id, day, board_id, member_id, nickname, city, phone, title, body, modified_at,
                      created_at, event_id, stream_partition, stream_offset, table_partition, table_offset,
                      kafka_partition, kafka_offset
                 FROM detail_empty) f
        WHERE ((f.day = p.day AND f.generation_id = p.generation_id) OR f.generation_id IS NULL)
          AND NOT EXISTS (SELECT 1 FROM detail_live l
                           WHERE l.day = p.day AND l.board_id = f.board_id
                             AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.board_id,
                                                l.stream_partition, l.stream_offset, l.table_partition,
                                                l.table_offset))
       UNION ALL
       SELECT l.board_id, l.member_id, l.nickname, l.city, l.phone, l.title, l.body, l.modified_at, l.created_at,
              l.event_id, l.stream_partition, l.stream_offset, l.table_partition, l.table_offset, l.kafka_partition,
              l.kafka_offset, l.day, 'live'::text AS finality, GREATEST(l.written_at, p.moved_at) AS shown_since
         FROM detail_live l
        WHERE l.day = p.day AND NOT l.deleted
          AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.board_id, l.stream_partition,
                             l.stream_offset, l.table_partition, l.table_offset)) x
 WHERE x.day = p.day;
COMMENT ON VIEW board_detail IS 'Every board with its member: final days as rebuilt, the rest as streamed.';

CREATE VIEW board_detail_masked AS
SELECT board_id, member_id, nickname, city, CASE WHEN char_length(phone) > 4 THEN repeat('*',
       char_length(phone) - 2) || right(phone, 2) ELSE repeat('*', char_length(phone)) END AS phone, title, body,
       modified_at, created_at, event_id, stream_partition, stream_offset, table_partition, table_offset,
       kafka_partition, kafka_offset, day, finality, shown_since
  FROM board_detail;
COMMENT ON VIEW board_detail_masked IS
    'Every board with its member, as board_detail, with personal values masked.';

DO $$
DECLARE
    relation text;
    described text[];
BEGIN
    FOREACH relation IN ARRAY ARRAY['board_detail', 'board_detail_masked'] LOOP
        FOREACH described SLICE 1 IN ARRAY ARRAY[
            ['board_id', 'Board id.'],
            ['member_id', 'The author''s member id.'],
            ['nickname', 'The author''s display name.'],
            ['city', 'The author''s city.'],
            ['phone', 'The author''s phone number.'],
            ['title', 'Title.'],
            ['body', 'Text.'],
            ['modified_at', 'When this version of the board was made.'],
            ['created_at', 'When the board was posted.'],
            ['event_id', 'Identity of the event: the client''s Idempotency-Key, else made by the gateway.'],
            ['stream_partition', 'Partition of the board record this row was made from.'],
            ['stream_offset', 'Offset of the board record this row was made from.'],
            ['table_partition', 'Partition of the member record this row was made from.'],
            ['table_offset', 'Offset of the member record this row was made from.'],
            ['kafka_partition', 'Partition of the first board-detail record of this version; null if none.'],
            ['kafka_offset', 'Offset of the first board-detail record of this version; null if none.'],
            ['day', 'The day the board belongs to: the date of created_at in the pipeline''s time zone.'],
            ['finality', '''final'' once the day was rebuilt and published, ''live'' until then.'],
            ['shown_since', 'Since when the row is shown as it is: when the stream wrote it, or its day began to show'
                            ' its generation, whichever is later. Either transaction can commit up to two minutes'
                            ' after it.']]
        LOOP
            EXECUTE format('COMMENT ON COLUMN %%I.%%I IS %%L', relation, described[1], described[2] || CASE
                WHEN relation = 'board_detail_masked' AND described[1] = ANY ('{phone}')
                THEN ' Masked: its last two characters are shown; role analyst_personal sees it.' ELSE '' END);
        END LOOP;
    END LOOP;
END
$$;

CREATE VIEW freshness AS
SELECT s.heartbeat_at,
       s.lag_records,
       s.lag_s,
       s.heartbeat_at - make_interval(secs => s.lag_s) AS shown_until,
       (SELECT max(updated_at) FROM offset_ledger WHERE consumer = 'serve') AS last_served_at,
       (SELECT value FROM pipeline_setting WHERE name = 'timezone') AS timezone
  FROM (SELECT min(heartbeat_at) AS heartbeat_at,
               CASE WHEN count(*) = count(lag_records) THEN sum(lag_records)::bigint END AS lag_records,
               CASE WHEN count(*) = count(lag_s) THEN sum(lag_s) END AS lag_s
          FROM stream_progress
         WHERE query IN ('join', 'serve')) s;
COMMENT ON VIEW freshness IS
    'One row: how far the speed layer is. A board that waits for its member is not in it.';
COMMENT ON COLUMN freshness.heartbeat_at IS 'When the speed layer last said that it is alive; it does every second.';
COMMENT ON COLUMN freshness.lag_records IS 'Records in Kafka that it has not taken, when it said so.';
COMMENT ON COLUMN freshness.lag_s IS 'How long the first of them has waited, in seconds, at most; null when not known.';
COMMENT ON COLUMN freshness.shown_until IS 'What reached Kafka before this is shown; null when not known.';
COMMENT ON COLUMN freshness.last_served_at IS 'When it last wrote rows.';
COMMENT ON COLUMN freshness.timezone IS 'The time zone of column day.';

-- A view that counted the generation's rows would open the tables of all days; a custom plan opens those of one. A day
-- with nothing on top opens none, so that the status of all days takes few locks.
CREATE FUNCTION shown_rows(of_day date) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    p day_publication;
    on_top bigint[];
    alive bigint;
    replaced bigint := 0;
BEGIN
    SELECT * INTO p FROM day_publication WHERE day = of_day;
    SELECT array_agg(l.board_id) FILTER (WHERE p.generation_id IS NOT NULL), count(*) FILTER (WHERE NOT l.deleted)
      INTO on_top, alive
      FROM detail_live l
     WHERE l.day = of_day
       AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.board_id, l.stream_partition,
                          l.stream_offset, l.table_partition, l.table_offset);
    IF on_top IS NOT NULL THEN
        SELECT count(*) INTO replaced
          FROM detail_final f
         WHERE f.day = of_day AND f.generation_id = p.generation_id AND f.board_id = ANY (on_top);
    END IF;
    RETURN CASE WHEN p.day IS NOT NULL THEN COALESCE(p.row_count, 0) - replaced + alive END;
END
$$;
COMMENT ON FUNCTION shown_rows IS 'How many rows of the day board_detail shows; null for a day that it does not have.';

CREATE VIEW day_status AS
SELECT p.day,
       p.status,
       p.raw_distinct,
       COALESCE(p.row_count, 0) AS row_count,
       COALESCE(p.pending_count, (SELECT count(*) FROM pending_record b WHERE b.day = p.day)) AS pending_count,
       COALESCE(p.rejected_count, 0) AS rejected_count,
       (SELECT count(*) FROM detail_correction c WHERE c.generation_id = p.generation_id) AS correction_count,
       (SELECT count(*) FROM detail_live l
         WHERE l.day = p.day AND NOT l.deleted
           AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.board_id, l.stream_partition,
                              l.stream_offset, l.table_partition, l.table_offset)) AS live_row_count,
       (SELECT COALESCE(sum(d.count), 0)::bigint FROM dirty_day d WHERE d.day = p.day) AS dirty_count,
       p.generation_id,
       p.published_at,
       p.day + (SELECT s.value::integer FROM pipeline_setting s WHERE s.name = 'retention_days')
           AS rebuildable_until,
       shown_rows(p.day) AS shown_rows
  FROM day_publication p;
COMMENT ON VIEW day_status IS 'How far each day is, and how much it can be trusted.';
COMMENT ON COLUMN day_status.day IS 'Date in the pipeline''s time zone.';
COMMENT ON COLUMN day_status.status IS
    'provisional (speed layer only), rebuilt (published) or certified (its balance adds up).';
COMMENT ON COLUMN day_status.raw_distinct IS
    'Distinct boards of the day in the raw topic at the cut, without those deleted or moved.';
COMMENT ON COLUMN day_status.row_count IS 'Rows of the published generation.';
COMMENT ON COLUMN day_status.pending_count IS 'Records that wait for their member.';
COMMENT ON COLUMN day_status.rejected_count IS 'Records that break the contract, one of each board.';
COMMENT ON COLUMN day_status.correction_count IS 'Differences the last published rebuild corrected.';
COMMENT ON COLUMN day_status.live_row_count IS 'Rows the speed layer holds on top of the published generation.';
COMMENT ON COLUMN day_status.dirty_count IS 'Records that reached the day after it was published.';
COMMENT ON COLUMN day_status.generation_id IS 'The published generation; null while provisional.';
COMMENT ON COLUMN day_status.published_at IS 'When it was published.';
COMMENT ON COLUMN day_status.rebuildable_until IS 'The first date on which raw no longer holds all of the day.';
COMMENT ON COLUMN day_status.shown_rows IS
    'Rows of the day that board_detail shows: row_count and live_row_count, an edited board counted once.';

CREATE VIEW day_trust AS
SELECT p.day,
       p.held_reason,
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
                   FROM dirty_day d WHERE d.day = p.day), '{}') AS dirty
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id;
COMMENT ON VIEW day_trust IS
    'What stands against trusting a day: corrections by class, what arrived since by cause.';
COMMENT ON COLUMN day_trust.day IS 'Date in the pipeline''s time zone.';
COMMENT ON COLUMN day_trust.held_reason IS 'Why a person undid the last publication; the night leaves the day alone.';
COMMENT ON COLUMN day_trust.uncertified_reason IS 'Why the published generation could not be certified.';
COMMENT ON COLUMN day_trust.certified_at IS 'When it was certified.';
COMMENT ON COLUMN day_trust.corrections IS 'Differences that the published rebuild corrected, counted by class.';
COMMENT ON COLUMN day_trust.dirty IS 'What reached the day after it was published, counted by cause.';

-- A query that names keys and no day is planned with the tables of all days. The keys are enough to tell which days can
-- have them, and the second query names those. The plan has a copy of the keys for each table: 10,000 keys take 60 MB,
-- and 100,000 take 2.8 GB.
CREATE FUNCTION board_detail_by_key(keys bigint[]) RETURNS SETOF board_detail_masked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    days date[];
BEGIN
    IF cardinality(keys) > 1000 THEN
        RAISE program_limit_exceeded
            USING MESSAGE = format('board_detail_by_key was called with %%s keys; 1000 is the most', cardinality(keys)),
                  HINT = 'Call it several times, or join board_detail_masked with a list of keys and name the days.';
    END IF;
    SELECT array_agg(DISTINCT d.day) INTO days
      FROM (SELECT p.day
              FROM day_publication p JOIN generation g ON g.id = p.generation_id
             WHERE EXISTS (SELECT 1 FROM unnest(keys) key WHERE key BETWEEN g.first_key AND g.last_key)
            UNION ALL
            SELECT l.day FROM detail_live l WHERE l.board_id = ANY (keys)) d;
    RETURN QUERY SELECT m.* FROM board_detail_masked m WHERE m.day = ANY (days) AND m.board_id = ANY (keys);
END
$$;
COMMENT ON FUNCTION board_detail_by_key IS
    'The rows of board_detail_masked with these keys, at most 1000, whatever their days; it opens the tables of days'
    ' that can have them.';

GRANT SELECT ON board_detail TO stream, batch, analyst_personal;
GRANT SELECT ON board_detail_masked TO batch, analyst, analyst_personal;
GRANT SELECT ON freshness TO batch, analyst, analyst_personal;
GRANT SELECT ON day_status TO batch, integrity, analyst, analyst_personal;
GRANT SELECT ON day_trust TO batch, integrity, analyst;
REVOKE EXECUTE ON FUNCTION shown_rows, board_detail_by_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION shown_rows TO batch, integrity, analyst, analyst_personal;
GRANT EXECUTE ON FUNCTION board_detail_by_key TO batch, analyst, analyst_personal;

-- Whoever owns a table has others run functions when they read it. All that a caller of these puts into a statement is
-- the number of a generation, a day, and the bounds of its rows.

CREATE FUNCTION generations.create_table(id bigint, of_day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- checked while it is loaded, so that neither the key nor attaching it reads the table once more
    EXECUTE format('CREATE TABLE generations.detail_final_g%%1$s ('
                   'LIKE public.detail_final INCLUDING DEFAULTS INCLUDING CONSTRAINTS,'
                   ' CONSTRAINT detail_final_g%%1$s_day CHECK (generation_id = %%1$s AND day = %%2$L))',
                   id, of_day);
    EXECUTE format('ALTER TABLE generations.detail_final_g%%s ALTER COLUMN board_id SET NOT NULL', id);
    EXECUTE format('GRANT SELECT, INSERT ON generations.detail_final_g%%s TO batch', id);
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE format('GRANT MAINTAIN ON generations.detail_final_g%%s TO batch', id);
    END IF;
END
$$;

CREATE FUNCTION generations.index_table_key(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE INDEX detail_final_g%%1$s_table_key ON generations.detail_final_g%%1$s (member_id)', id);
END
$$;

CREATE FUNCTION generations.index_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX detail_final_g%%1$s_pkey ON generations.detail_final_g%%1$s (board_id)', id);
    PERFORM generations.index_table_key(id);
END
$$;

CREATE FUNCTION generations.analyze_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ANALYZE (SKIP_LOCKED) generations.detail_final_g%%s', id);
END
$$;

CREATE FUNCTION generations.attach_table(id bigint, of_day date, first_key bigint, last_key bigint,
                                         earliest timestamptz, latest timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE generations.detail_final_g%%1$s'
                   ' ADD PRIMARY KEY USING INDEX detail_final_g%%1$s_pkey', id);
    IF first_key IS NOT NULL AND earliest IS NOT NULL THEN
        -- a query by key or by time, without a day, is planned without the tables that cannot have its rows
        EXECUTE format('ALTER TABLE generations.detail_final_g%%s'
                       ' ADD CHECK (board_id BETWEEN %%s AND %%s AND created_at BETWEEN %%L AND %%L)',
                       id, first_key, last_key, earliest, latest);
    END IF;
    EXECUTE format('ALTER TABLE public.detail_final ATTACH PARTITION generations.detail_final_g%%1$s'
                   ' FOR VALUES FROM (%%2$L, %%1$s) TO (%%2$L, %%3$s)', id, of_day, id + 1);
END
$$;

CREATE FUNCTION generations.add_bounds(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bounds record;
BEGIN
    EXECUTE format('SELECT min(board_id) AS first_key, max(board_id) AS last_key, min(created_at) AS earliest,'
                   ' max(created_at) AS latest FROM generations.detail_final_g%%s', id) INTO bounds;
    IF bounds.first_key IS NOT NULL AND bounds.earliest IS NOT NULL THEN
        EXECUTE format('ALTER TABLE generations.detail_final_g%%1$s ADD CONSTRAINT detail_final_g%%1$s_bounds'
                       ' CHECK (board_id BETWEEN %%2$s AND %%3$s AND created_at BETWEEN %%4$L AND %%5$L) NOT VALID',
                       id, bounds.first_key, bounds.last_key, bounds.earliest, bounds.latest);
    END IF;
END
$$;

CREATE FUNCTION generations.validate_bounds(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE generations.detail_final_g%%1$s VALIDATE CONSTRAINT detail_final_g%%1$s_bounds', id);
END
$$;

CREATE FUNCTION generations.drop_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS generations.detail_final_g%%s', id);
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA generations FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA generations TO batch;

-- Comments of tables and columns.

COMMENT ON TABLE pipeline_setting IS 'Settings of the deployment that views need, and those that must not change.';
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
COMMENT ON COLUMN generation.stream_ends IS 'The cut of topic board, by partition; element 1 is partition 0.';
COMMENT ON COLUMN generation.table_ends IS 'The cut of topic member, by partition; element 1 is partition 0.';
COMMENT ON COLUMN generation.first_key IS 'The smallest board id of its rows; null without rows.';
COMMENT ON COLUMN generation.last_key IS 'The greatest board id of its rows; null without rows.';
COMMENT ON COLUMN generation.verified_at IS 'When it was last compared with what readers saw; null: never.';
COMMENT ON COLUMN generation.verified_shown_id IS
    'The generation that the day showed then; null: the speed layer''s rows alone.';
COMMENT ON COLUMN generation.verified_position IS
    'How far board-detail was served then, by topic id and partition: records from there on were not compared.';
COMMENT ON COLUMN generation.newest_version_at IS
    'The newest version of its rows; 1970-01-01 without rows, null while it is built.';
COMMENT ON TABLE generation_load IS 'Parts already loaded: a retried task finds its part here and loads nothing.';
COMMENT ON COLUMN generation_load.part IS 'From 0 on the parts that hold rows; below, decisions about boards.';
COMMENT ON TABLE generation_excluded IS 'Records of the day that are not rows: pending, rejected, deleted or moved.';
COMMENT ON COLUMN generation_excluded.version_at IS
    'Of a board that was deleted or has moved: the version that says so. An older one of it is not served again.';
COMMENT ON TABLE rebuild_run IS 'How far each build of a day is, or was when it failed.';
COMMENT ON TABLE detail_final IS
    'Batch layer: the rows of each rebuilt day, one partition a generation; those of a day are neighbours.';
COMMENT ON TABLE detail_empty IS
    'Always empty. Beside it in the view, a day''s generation is chosen while the query runs, also where planning'
    ' leaves one.';
COMMENT ON TABLE detail_live IS 'Speed layer: the newest version of each board not yet in a published day.';
COMMENT ON COLUMN detail_live.stream_partition IS
    'Partition of the board record this row was made from; -1 less the partition if its topic was replaced since.';
COMMENT ON COLUMN detail_live.stream_offset IS
    'Offset of the board record this row was made from; less 10^17 if its topic was replaced since.';
COMMENT ON COLUMN detail_live.deleted IS 'The board was deleted; the row hides it until its day is rebuilt.';
COMMENT ON TABLE detail_covered IS
    'Live rows that the published generation covers, moved out of the way of readers: an undo brings them back.';
COMMENT ON COLUMN detail_covered.generation_id IS 'The generation whose cut covered the row.';
COMMENT ON TABLE detail_correction IS 'Every difference between what was shown of a day and what was rebuilt.';
COMMENT ON TABLE day_publication IS 'Which generation of a day the view shows.';
COMMENT ON COLUMN day_publication.held_reason IS
    'Why a person undid the last publication; the nightly run leaves the day alone until one is made by hand.';
COMMENT ON COLUMN day_publication.undoable_since IS
    'What the day showed before then cannot be shown again: live rows that were covered earlier are gone.';
COMMENT ON COLUMN day_publication.stream_ends IS 'The cut of topic board, by partition; element 1 is partition 0.';
COMMENT ON COLUMN day_publication.table_ends IS 'The cut of topic member, by partition; element 1 is partition 0.';
COMMENT ON COLUMN day_publication.moved_at IS 'When the day last began to show another generation, or none.';
COMMENT ON TABLE publication IS 'Every change of what a day shows: from which generation to which, by whom and why.';
COMMENT ON COLUMN publication.from_generation_id IS 'Null: the speed layer''s rows alone.';
COMMENT ON COLUMN publication.to_generation_id IS 'Null: the speed layer''s rows alone.';
COMMENT ON TABLE day_certificate IS 'What a published day was certified by: each term, and the query that counts it.';
COMMENT ON COLUMN day_certificate.value IS 'A count, or the hash, as text.';
COMMENT ON COLUMN day_certificate.query IS
    'Run it to count the term again: SQL as role batch, or a call to a gateway where it begins with GET.';
COMMENT ON TABLE dirty_day IS 'Published days that something reached afterwards, with cause and count.';
COMMENT ON TABLE unchecked_day IS
    'Days that are to be compared with the other published days and with late members: their pointer moved, or'
    ' versions of keys of the table came late.';
COMMENT ON COLUMN unchecked_day.request IS 'Another one each time the day is entered, also while it is checked.';
COMMENT ON COLUMN unchecked_day.has_moved IS
    'False if only versions of keys of the table came late since the day was checked: it is not compared with the'
    ' other days.';
COMMENT ON TABLE day_attempt IS
    'Days that were begun since they were last published: the last run, and how many runs.';
COMMENT ON TABLE late_version IS
    'Versions of keys of the table that came after the cut of a kept generation and are no newer than its newest row.';
COMMENT ON TABLE searched_generation IS
    'Generations from whose cut on the members'' topic was searched for late versions, up to its place in the'
    ' ledger.';
COMMENT ON TABLE offset_ledger IS 'The next offset to take, committed with the data it stands for.';
COMMENT ON COLUMN offset_ledger.consumer IS
    'join, serve, archive or late_version; or replaced: before next_offset board-detail was made from a topic board'
    ' that was replaced since.';
COMMENT ON TABLE ledger_repair IS
    'Every entry of the offset ledger that a person moved, from where to where, and why.';
COMMENT ON TABLE stream_driver IS 'Which driver of a query may write: the one that took the lease last.';
COMMENT ON COLUMN stream_driver.epoch IS 'Grows with every driver: one that holds an older epoch writes no more.';
COMMENT ON COLUMN stream_driver.ended_at IS 'When the driver let go of the lease; null while it has it, or died.';
COMMENT ON TABLE stream_progress IS 'What each streaming query last did, and when its driver was last alive.';
COMMENT ON COLUMN stream_progress.input_rate IS 'Records a second that reached the topic, over the last 15 s.';
COMMENT ON COLUMN stream_progress.processed_rate IS
    'Records a second that were taken while batches ran, over the last 15 s.';
COMMENT ON COLUMN stream_progress.lag_records IS 'Records of the topic not taken yet.';
COMMENT ON COLUMN stream_progress.lag_s IS
    'How long the first record not taken yet has waited, at most; 0 when all are taken, null when not known.';
COMMENT ON COLUMN stream_progress.phases IS 'Seconds of the last batch by phase.';
COMMENT ON COLUMN stream_progress.metrics IS
    'Counts since the start of the driver, and the size of the member table.';
COMMENT ON COLUMN stream_progress.waiting_for IS 'What the query waits for, and since when; null while it works.';
COMMENT ON TABLE stream_trial IS 'Where each query last began, and what failed there; kept over drivers that end.';
COMMENT ON COLUMN stream_trial.size IS 'How many offsets are tried at a time; null while batches are taken whole.';
COMMENT ON COLUMN stream_trial.failures IS
    'How often the present step failed; while size is null, drivers that began here and ended without a word.';
COMMENT ON COLUMN stream_trial.rejected IS 'Records in a row that became rejects because they could not be taken.';
COMMENT ON TABLE pending_record IS 'Records whose member is not known yet, whole, until the member comes.';
COMMENT ON COLUMN pending_record.version_at IS 'The version of the board that waits.';
COMMENT ON COLUMN pending_record.sent_at IS 'When it was sent to board-detail; the row goes when that is served.';
COMMENT ON TABLE reject IS 'Records that break their contract, with the reason and the record itself.';
COMMENT ON TABLE forgotten_key IS
    'Keys of the table whose data were removed on request. Rebuilds leave out their boards, wherever raw still has'
    ' them.';
COMMENT ON COLUMN forgotten_key.reason IS 'Why, as the person who ran the command wrote it; no personal data.';
COMMENT ON COLUMN forgotten_key.stream_keys IS 'Keys of its boards that were found: they get tombstones.';
COMMENT ON COLUMN forgotten_key.removed IS 'How much the last run removed, by place.';
COMMENT ON TABLE archive_batch IS 'Ranges of a topic that are in the archive, in the order they were written.';
COMMENT ON COLUMN archive_batch.starts IS 'First offset a partition.';
COMMENT ON COLUMN archive_batch.ends IS 'End offset (exclusive) a partition.';
COMMENT ON COLUMN archive_batch.newest IS 'Greatest timestamp of a record, ms since 1970, a partition with records.';
COMMENT ON COLUMN archive_batch.gap IS 'Offsets before this batch that are missing here: first and end, a partition.';
COMMENT ON COLUMN archive_batch.gap_since IS 'No missing record is older; null: none was ever archived before.';
COMMENT ON COLUMN archive_batch.gap_until IS 'No missing record is newer; null: none is missing before this batch.';
COMMENT ON COLUMN archive_batch.gap_reason IS 'Why they are missing: no archive yet, or a person accepted it.';
COMMENT ON COLUMN archive_batch.taken_at IS 'When the ends were looked up.';
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
"""


def upgrade() -> None:
    """Rename, without reading a table, and make views and functions again."""
    for block in (DROPS, SITE, RENAMES, VIEWS_AND_FUNCTIONS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
