"""Role integrity reads how far the archive is, for the metrics of the batch layer."""

from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    """Grant what is missing."""
    op.execute("GRANT SELECT ON offset_ledger TO integrity")
    op.execute("GRANT SELECT (taken_at) ON archive_batch TO integrity")


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
