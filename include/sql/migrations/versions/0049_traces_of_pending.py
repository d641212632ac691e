"""The trace of a pending record, which its record of the output topic gets when it is sent."""

from alembic import op

revision = "0049"
down_revision = "0048"

COLUMN = """
ALTER TABLE pending_record ADD COLUMN traceparent text;
COMMENT ON COLUMN pending_record.traceparent IS 'The trace of the request that made it; null if it belongs to none.';
"""


def upgrade() -> None:
    """Add the column."""
    op.execute(COLUMN)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
