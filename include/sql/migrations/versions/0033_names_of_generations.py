"""The tables of generations have the names that the functions of revision 0032 give to new ones."""

from alembic import op

revision = "0033"
down_revision = "0032"

# A transaction for each table: a reader waits for one of them at a time, and no transaction holds all their locks.
RENAMES = r"""
DO $$
DECLARE
    relation text;
    found record;
BEGIN
    FOR relation IN
        SELECT relname FROM pg_class
         WHERE relnamespace = 'generations'::regnamespace AND relkind = 'r' AND relname ~ '^board_detail_final_g[0-9]+$'
    LOOP
        FOR found IN
            SELECT conname AS name FROM pg_constraint
             WHERE conrelid = format('generations.%%I', relation)::regclass AND contype <> 'n'
               AND conname ~ '^board_detail_final_g'
        LOOP
            EXECUTE format('ALTER TABLE generations.%%I RENAME CONSTRAINT %%I TO %%I', relation, found.name,
                           substring(found.name FROM 7));
        END LOOP;
        FOR found IN
            SELECT indexname AS name FROM pg_indexes
             WHERE schemaname = 'generations' AND tablename = relation AND indexname ~ '^board_detail_final_g'
        LOOP
            EXECUTE format('ALTER INDEX generations.%%I RENAME TO %%I', found.name,
                           regexp_replace(substring(found.name FROM 7), '_member$', '_table_key'));
        END LOOP;
        EXECUTE format('ALTER TABLE generations.%%I RENAME TO %%I', relation, substring(relation FROM 7));
        COMMIT;
    END LOOP;
END
$$;
"""


def upgrade() -> None:
    """Rename the tables that are left, each in a transaction."""
    with op.get_context().autocommit_block():
        op.get_bind().exec_driver_sql(RENAMES)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
