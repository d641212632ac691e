"""A generation keeps the columns that its hash was computed from, and a correction can be that of an added column."""

from alembic import op

revision = "0034"
down_revision = "0033"

COLUMNS = r"""
ALTER TABLE generation ADD COLUMN hashed_columns text[];
COMMENT ON COLUMN generation.hashed_columns IS
    'The columns that content_hash was computed from, in their order; columns that were added later are not in it.';
UPDATE generation
   SET hashed_columns = (SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
                          WHERE attrelid = 'detail_final'::regclass AND attnum > 0 AND NOT attisdropped
                            AND attname NOT IN ('generation_id', 'day', 'kafka_partition', 'kafka_offset', 'replayed'))
 WHERE content_hash IS NOT NULL;
DO $$
DECLARE
    known text;
BEGIN
    SELECT pg_get_constraintdef(oid) INTO known FROM pg_constraint
     WHERE conrelid = 'detail_correction'::regclass AND conname = 'detail_correction_class_check';
    ALTER TABLE detail_correction DROP CONSTRAINT detail_correction_class_check;
    EXECUTE 'ALTER TABLE detail_correction ADD CONSTRAINT detail_correction_class_check '
            || replace(known, '''unexplained''', '''column_added''::text, ''unexplained''') || ' NOT VALID';
END
$$;
"""


def upgrade() -> None:
    """Add the column, with the columns of the hashes that exist, and the class of corrections."""
    op.execute(COLUMNS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
