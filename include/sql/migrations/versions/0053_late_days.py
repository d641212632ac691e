"""Days of records that came late: topics may hold them for longer than they promise, and a young database knows."""

from alembic import op

revision = "0053"
down_revision = "0052"

STATEMENTS = """
GRANT SELECT (first_seen_at) ON database_timeline TO integrity;
COMMENT ON COLUMN day_status.rebuildable_until IS
    'The first date on which the topics may no longer hold all of the day; records that came late are held for longer,'
    ' and those in the archive for good.';
"""


def upgrade() -> None:
    """Grant the column, and replace the comment."""
    op.execute(STATEMENTS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
