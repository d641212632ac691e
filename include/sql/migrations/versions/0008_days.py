"""Live rows of days with a year from 1 to 9999: clients have no date for others, and could not read the row."""

from alembic import op

revision = "0008"
down_revision = "0007"

DAYS = """
ALTER TABLE board_detail_live
    ADD CONSTRAINT board_detail_live_has_a_year CHECK (day BETWEEN date '0001-01-01' AND date '9999-12-31');
"""


def upgrade() -> None:
    """Change the table."""
    op.get_bind().exec_driver_sql(DAYS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
