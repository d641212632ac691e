"""The Integrity page reads as a role of its own, which reads what the page shows and nothing else."""

from alembic import op

revision = "0024"
down_revision = "0023"

GRANTS = """
GRANT SELECT ON day_status, day_trust TO integrity;
GRANT EXECUTE ON FUNCTION shown_rows TO integrity;
GRANT SELECT (topic, gap_until) ON archive_batch TO integrity;
REVOKE SELECT ON archive_batch FROM analyst;
"""


def upgrade() -> None:
    """Grant to the one what the other has no use for."""
    op.get_bind().exec_driver_sql(GRANTS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
