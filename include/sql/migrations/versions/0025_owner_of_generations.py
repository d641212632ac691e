"""pipeline_owner owns the tables of generations, in a schema of their own; batch makes and drops them by functions."""

from alembic import op

revision = "0025"
down_revision = "0024"

# Whoever owns a table has others run functions when they read it. All that a caller puts into a statement here is the
# number of a generation, a day, and the bounds of its rows.
FUNCTIONS = """
CREATE SCHEMA IF NOT EXISTS generations;
COMMENT ON SCHEMA generations IS 'A table for each build of a day, made and dropped by these functions alone.';

CREATE OR REPLACE FUNCTION generations.create_table(id bigint, of_day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- checked while it is loaded, so that neither the key nor attaching it reads the table once more
    EXECUTE format('CREATE TABLE generations.board_detail_final_g%%1$s ('
                   'LIKE public.board_detail_final INCLUDING DEFAULTS INCLUDING CONSTRAINTS,'
                   ' CONSTRAINT board_detail_final_g%%1$s_day CHECK (generation_id = %%1$s AND day = %%2$L))',
                   id, of_day);
    EXECUTE format('ALTER TABLE generations.board_detail_final_g%%s ALTER COLUMN board_id SET NOT NULL', id);
    EXECUTE format('GRANT SELECT, INSERT ON generations.board_detail_final_g%%s TO batch', id);
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE format('GRANT MAINTAIN ON generations.board_detail_final_g%%s TO batch', id);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION generations.index_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('CREATE UNIQUE INDEX board_detail_final_g%%1$s_pkey'
                   ' ON generations.board_detail_final_g%%1$s (board_id)', id);
END
$$;

CREATE OR REPLACE FUNCTION generations.analyze_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ANALYZE generations.board_detail_final_g%%s', id);
END
$$;

CREATE OR REPLACE FUNCTION generations.attach_table(id bigint, of_day date, first_key bigint, last_key bigint,
                                                    earliest timestamptz, latest timestamptz) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('ALTER TABLE generations.board_detail_final_g%%1$s'
                   ' ADD PRIMARY KEY USING INDEX board_detail_final_g%%1$s_pkey', id);
    IF first_key IS NOT NULL AND earliest IS NOT NULL THEN
        -- a query by key or by time, without a day, is planned without the tables that cannot have its rows
        EXECUTE format('ALTER TABLE generations.board_detail_final_g%%s'
                       ' ADD CHECK (board_id BETWEEN %%s AND %%s AND created_at BETWEEN %%L AND %%L)',
                       id, first_key, last_key, earliest, latest);
    END IF;
    EXECUTE format('ALTER TABLE public.board_detail_final ATTACH PARTITION generations.board_detail_final_g%%1$s'
                   ' FOR VALUES FROM (%%2$L, %%1$s) TO (%%2$L, %%3$s)', id, of_day, id + 1);
END
$$;

CREATE OR REPLACE FUNCTION generations.drop_table(id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS generations.board_detail_final_g%%s', id);
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA generations FROM PUBLIC;
GRANT USAGE ON SCHEMA generations TO batch;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA generations TO batch;
REVOKE CREATE ON SCHEMA public FROM PUBLIC, batch;
"""

# A transaction for each table: a reader waits for one of them at a time, and no transaction holds all their locks.
TABLES = """
DO $$
DECLARE
    name text;
    is_half_detached boolean;
BEGIN
    FOR name, is_half_detached IN
        SELECT relname, COALESCE(inhdetachpending, false) FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid
         WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname ~ '^board_detail_final_g[0-9]+$'
    LOOP
        IF is_half_detached THEN
            EXECUTE format('ALTER TABLE public.board_detail_final DETACH PARTITION public.%%I FINALIZE', name);
        END IF;
        EXECUTE format('ALTER TABLE public.%%I OWNER TO pipeline_owner', name);
        EXECUTE format('ALTER TABLE public.%%I SET SCHEMA generations', name);
        EXECUTE format('GRANT SELECT, INSERT ON generations.%%I TO batch', name);
        COMMIT;
    END LOOP;
END
$$;
"""

OWNER = """
ALTER TABLE board_detail_final OWNER TO pipeline_owner;
GRANT SELECT ON board_detail_final TO batch;
"""


def upgrade() -> None:
    """Move the tables, without reading them; the view stays as it is."""
    op.get_bind().exec_driver_sql(FUNCTIONS)
    with op.get_context().autocommit_block():
        op.get_bind().exec_driver_sql(TABLES)
    op.get_bind().exec_driver_sql(OWNER)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
