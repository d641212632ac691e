"""Boards are found by their ids, and by an index of their members, without a day."""

from alembic import op

revision = "0026"
down_revision = "0025"

# A query that names ids and no day is planned with the tables of all days. The ids are enough to tell which days can
# have them, and the second query names those.
BOARDS_BY_ID = """
CREATE FUNCTION boards_by_id(board_ids bigint[]) RETURNS SETOF board_detail_masked
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    days date[];
BEGIN
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
    'The rows of board_detail_masked with these ids, whatever their days; it opens the tables of days that can have'
    ' them.';
REVOKE EXECUTE ON FUNCTION boards_by_id FROM PUBLIC;
GRANT EXECUTE ON FUNCTION boards_by_id TO analyst, analyst_personal, batch;
"""

# The posts of a member, without a day, are looked up in each generation. Tables that are there get the index, and the
# CHECK of their bounds, each in a transaction of its own, from the nightly `collect`.
TABLES = """
CREATE FUNCTION generations.index_members(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE INDEX board_detail_final_g%%1$s_member ON generations.board_detail_final_g%%1$s (member_id)',
                   id);
END
$$;

CREATE OR REPLACE FUNCTION generations.index_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX board_detail_final_g%%1$s_pkey'
                   ' ON generations.board_detail_final_g%%1$s (board_id)', id);
    PERFORM generations.index_members(id);
END
$$;

CREATE FUNCTION generations.add_bounds(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    bounds record;
BEGIN
    EXECUTE format('SELECT min(board_id) AS first_key, max(board_id) AS last_key, min(created_at) AS earliest,'
                   ' max(created_at) AS latest FROM generations.board_detail_final_g%%s', id) INTO bounds;
    IF bounds.first_key IS NOT NULL AND bounds.earliest IS NOT NULL THEN
        EXECUTE format('ALTER TABLE generations.board_detail_final_g%%1$s'
                       ' ADD CONSTRAINT board_detail_final_g%%1$s_bounds'
                       ' CHECK (board_id BETWEEN %%2$s AND %%3$s AND created_at BETWEEN %%4$L AND %%5$L) NOT VALID',
                       id, bounds.first_key, bounds.last_key, bounds.earliest, bounds.latest);
    END IF;
END
$$;

CREATE FUNCTION generations.validate_bounds(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE generations.board_detail_final_g%%1$s'
                   ' VALIDATE CONSTRAINT board_detail_final_g%%1$s_bounds', id);
END
$$;

REVOKE EXECUTE ON FUNCTION generations.index_members, generations.add_bounds, generations.validate_bounds FROM PUBLIC;
GRANT EXECUTE ON FUNCTION generations.index_members, generations.add_bounds, generations.validate_bounds TO batch;
"""


def upgrade() -> None:
    """Make the functions."""
    for block in (BOARDS_BY_ID, TABLES):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
