"""A day that late versions of members may concern is not compared with the other days."""

from alembic import op

revision = "0028"
down_revision = "0027"

COLUMN = """
ALTER TABLE unchecked_day ADD COLUMN has_moved boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN unchecked_day.has_moved IS
    'False if only versions of members came late since the day was checked: it is not compared with the other days.';
"""


def upgrade() -> None:
    """Add the column; days that wait are compared."""
    op.get_bind().exec_driver_sql(COLUMN)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
