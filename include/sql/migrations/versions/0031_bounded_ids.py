"""boards_by_id takes a bounded number of ids; a table that somebody else analyses does not hold up a build."""

from alembic import op

revision = "0031"
down_revision = "0030"

# The plan has a copy of the ids for each table: 10,000 ids take 60 MB, and 100,000 take 2.8 GB.
BOARDS_BY_ID = """
CREATE OR REPLACE FUNCTION boards_by_id(board_ids bigint[]) RETURNS SETOF board_detail_masked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    days date[];
BEGIN
    IF cardinality(board_ids) > 1000 THEN
        RAISE program_limit_exceeded
            USING MESSAGE = format('boards_by_id was called with %%s ids; 1000 is the most', cardinality(board_ids)),
                  HINT = 'Call it several times, or join board_detail_masked with a list of ids and name the days.';
    END IF;
    SELECT array_agg(DISTINCT d.day) INTO days
      FROM (SELECT p.day
              FROM day_publication p JOIN generation g ON g.id = p.generation_id
             WHERE EXISTS (SELECT 1 FROM unnest(board_ids) id WHERE id BETWEEN g.first_key AND g.last_key)
            UNION ALL
            SELECT l.day FROM board_detail_live l WHERE l.board_id = ANY (board_ids)) d;
    RETURN QUERY SELECT m.* FROM board_detail_masked m WHERE m.day = ANY (days) AND m.board_id = ANY (board_ids);
END
$$;
COMMENT ON FUNCTION boards_by_id IS
    'The rows of board_detail_masked with these ids, at most 1000, whatever their days; it opens the tables of days'
    ' that can have them.';
"""

REVISION = """
GRANT SELECT ON alembic_version TO batch;
"""

ANALYZE = """
CREATE OR REPLACE FUNCTION generations.analyze_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ANALYZE (SKIP_LOCKED) generations.board_detail_final_g%%s', id);
END
$$;
"""


def upgrade() -> None:
    """Replace the functions; their grants stay. Commands of batch see which revision the database is at."""
    for block in (BOARDS_BY_ID, ANALYZE, REVISION):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
