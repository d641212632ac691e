"""PostgreSQL refuses what the stream writes in a transaction that does not hold the driver's lease."""

from include.runtime.settings import Settings
from tests.support.sessions import execute

_FENCE = """
CREATE FUNCTION lease_is_held() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN
    IF session_user = 'stream' AND NOT EXISTS (
        SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND relation = 'stream_driver'::regclass
           AND mode IN ('RowShareLock', 'RowExclusiveLock', 'ExclusiveLock')
    ) THEN
        RAISE EXCEPTION 'written without the lease: % of %', TG_OP, TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
DO $$
DECLARE name regclass;
BEGIN
    FOR name IN
        SELECT c.oid FROM pg_class c
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
           AND has_table_privilege('stream', c.oid, 'INSERT, UPDATE, DELETE') AND c.relname <> 'stream_driver'
    LOOP
        EXECUTE format('CREATE TRIGGER fenced AFTER INSERT OR UPDATE OR DELETE ON %s '
                       'FOR EACH STATEMENT EXECUTE FUNCTION lease_is_held()', name);
    END LOOP;
END $$;
"""


def refuse_unfenced(settings: Settings) -> list[str]:
    """From now on; returns the tables concerned, which are all that the role `stream` may write."""
    execute(settings, _FENCE)
    return [table for (table,) in execute(
        settings, "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'fenced' ORDER BY 1")]  # fmt: skip
