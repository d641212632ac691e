"""Timelines of the database: a promoted standby or a restored backup is noticed, and ids are not given twice."""

from alembic import op

revision = "0048"
down_revision = "0047"

TIMELINES = """
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
GRANT SELECT, UPDATE (reconciled_at) ON database_timeline TO gateway;
GRANT SELECT ON database_timeline TO stream, batch;
COMMENT ON TABLE database_timeline IS
    'Timelines on which the database was written: each one after the first is a promoted standby or a restored backup.';
COMMENT ON COLUMN database_timeline.timeline IS 'As current_timeline() returns it.';
COMMENT ON COLUMN database_timeline.first_seen_at IS
    'When the first session of the pipeline wrote on it, or a restore that did not change it was noted.';
COMMENT ON COLUMN database_timeline.replayed_until IS
    'Commit time, by the old primary''s clock, of the last transaction that was replayed, and no later than the newest'
    ' row of the site; later ones are lost. Null if not known.';
COMMENT ON COLUMN database_timeline.reconciled_at IS
    'When include.gateway.reconcile had written back the rows that were lost; null: not yet.';
-- `make restore` of a backup without timelines leaves the setting
WITH restored AS (DELETE FROM pipeline_setting WHERE name = 'restored' RETURNING name)
INSERT INTO database_timeline (timeline, reconciled_at)
SELECT current_timeline(), CASE WHEN NOT EXISTS (SELECT FROM restored) THEN clock_timestamp() END;

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
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, COALESCE(last_value, 0) + 1000000)
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
    'Returns the current timeline. The first call on a timeline notes it, and moves every sequence 1,000,000 ahead, so'
    ' that ids of lost rows are not given again. is_restored: notes it again, after a restore that did not change it.'
    ' Null on a standby.';
REVOKE EXECUTE ON FUNCTION note_timeline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION note_timeline TO gateway, stream, batch;

DO $do$
DECLARE
    table_key text := (SELECT attname FROM pg_attribute WHERE attrelid = 'forgotten_key'::regclass AND attnum = 1);
BEGIN
    EXECUTE format('GRANT SELECT (%I, stream_keys) ON forgotten_key TO gateway', table_key);
END
$do$;

ALTER TABLE stream_driver ADD COLUMN timeline text;
COMMENT ON COLUMN stream_driver.timeline IS 'The timeline of the database on which the driver took the lease.';
"""


def upgrade() -> None:
    """Add the table, the functions, and the timeline of a lease."""
    op.execute(TIMELINES)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
