"""A driver that ends lets go of its lease; one that starts sees whether the schema is the one it was written for."""

from alembic import op

revision = "0014"
down_revision = "0013"

DRIVER = """
ALTER TABLE stream_driver ADD COLUMN ended_at timestamptz;
COMMENT ON COLUMN stream_driver.ended_at IS 'When the driver let go of the lease; null while it has it, or died.';
GRANT SELECT ON alembic_version TO stream;
"""


def upgrade() -> None:
    """Change the table."""
    op.get_bind().exec_driver_sql(DRIVER)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
