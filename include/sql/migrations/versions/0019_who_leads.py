"""Operators ask as role `batch` which driver of the stream leads."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Let it read the lease."""
    op.get_bind().exec_driver_sql("GRANT SELECT ON stream_driver TO batch")


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
