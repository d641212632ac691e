"""Boards that a generation left out because they were deleted or moved keep the version that says so."""

from alembic import op

revision = "0011"
down_revision = "0010"

VERSIONS = """
ALTER TABLE generation_excluded ADD COLUMN version_at timestamptz;
COMMENT ON COLUMN generation_excluded.version_at IS
    'Of a board that was deleted or has moved: the version that says so. An older one of it is not served again.';
"""


def upgrade() -> None:
    """Change the table."""
    op.get_bind().exec_driver_sql(VERSIONS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
