"""Ids after a restore are beyond those that an earlier restore of the same backup gave."""

from alembic import op

revision = "0051"
down_revision = "0050"

FUNCTION = r"""
CREATE OR REPLACE FUNCTION note_timeline(is_restored boolean DEFAULT false) RETURNS text
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
"""


def upgrade() -> None:
    """Replace the function."""
    op.execute(FUNCTION)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
