"""Pending boards whose record has a timestamp outside the years of the contract: they are kept without it."""

from alembic import op

revision = "0009"
down_revision = "0008"

PENDING = "ALTER TABLE pending_board ALTER COLUMN kafka_timestamp DROP NOT NULL"


def upgrade() -> None:
    """Change the table."""
    op.get_bind().exec_driver_sql(PENDING)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
