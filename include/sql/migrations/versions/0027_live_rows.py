"""A newer version of a live row is written beside the older one, and no index is touched."""

from alembic import op

revision = "0027"
down_revision = "0026"

FILLFACTOR = "ALTER TABLE board_detail_live SET (fillfactor = 70)"


def upgrade() -> None:
    """Set it for pages that are filled from now on; those that are full already stay as they are."""
    op.get_bind().exec_driver_sql(FILLFACTOR)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
