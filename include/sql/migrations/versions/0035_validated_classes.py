"""The classes of corrections that 0034 added are checked in rows that exist."""

from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    """Validate the constraint, which lets others read and write."""
    op.execute("ALTER TABLE detail_correction VALIDATE CONSTRAINT detail_correction_class_check")


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
