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
COMMENT ON COLUMN database_timeline.first_seen_at IS 'When the first session of the pipeline wrote on it.';
COMMENT ON COLUMN database_timeline.replayed_until IS
    'Commit time, by the old primary''s clock, of the last transaction that was replayed; later ones are lost. Null if'
    ' not known.';
COMMENT ON COLUMN database_timeline.reconciled_at IS
    'When include.gateway.reconcile had written back the rows that were lost; null: not yet.';
INSERT INTO database_timeline (timeline, reconciled_at) VALUES (current_timeline(), clock_timestamp());

CREATE FUNCTION note_timeline() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    present CONSTANT text := current_timeline();
BEGIN
    IF present IS NULL OR current_setting('transaction_read_only')::boolean
       OR EXISTS (SELECT FROM database_timeline WHERE timeline = present) THEN
        RETURN present;
    END IF;
    -- sessions that come meanwhile wait until no lost id can be given again
    LOCK TABLE database_timeline IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM database_timeline WHERE timeline = present) THEN
        RETURN present;
    END IF;
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, COALESCE(last_value, 0) + 1000000)
       FROM pg_sequences WHERE schemaname IN ('public', 'site');
    INSERT INTO database_timeline (timeline, replayed_until, reconciled_at)
    VALUES (present, pg_last_xact_replay_timestamp(),
            -- without the site's tables, the stream writes back all that was lost: it reads the topics again
            CASE WHEN to_regclass('site.member') IS NULL THEN clock_timestamp() END);
    RETURN present;
END
$$;
COMMENT ON FUNCTION note_timeline IS
    'Returns the current timeline. The first call on a timeline notes it, and moves every sequence 1,000,000 ahead, so'
    ' that ids of lost rows are not given again. Null on a standby.';
REVOKE EXECUTE ON FUNCTION note_timeline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION note_timeline TO gateway, stream, batch;

ALTER TABLE stream_driver ADD COLUMN timeline text;
COMMENT ON COLUMN stream_driver.timeline IS 'The timeline of the database on which the driver took the lease.';
"""


def upgrade() -> None:
    """Add the table, the functions, and the timeline of a lease."""
    op.execute(TIMELINES)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
