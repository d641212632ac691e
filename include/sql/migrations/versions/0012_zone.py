"""The stream reads the time zone that days were filed under: it refuses to start in another one."""

from alembic import op

revision = "0012"
down_revision = "0011"

ZONE = """
GRANT SELECT ON pipeline_setting TO stream;
COMMENT ON TABLE pipeline_setting IS 'Settings of the deployment that views need, and those that must not change.';
"""


def upgrade() -> None:
    """Change the grant."""
    op.get_bind().exec_driver_sql(ZONE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
