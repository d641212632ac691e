"""Days that are begun night after night and never published make room for others."""

from alembic import op

revision = "0020"
down_revision = "0019"

ATTEMPT = """
CREATE TABLE day_attempt (
    day date PRIMARY KEY,
    run_id text NOT NULL,
    runs integer NOT NULL DEFAULT 1,
    last_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE day_attempt IS 'Days that were begun since they were last published: the last run, and how many runs.';
GRANT SELECT, INSERT, UPDATE, DELETE ON day_attempt TO batch;
"""


def upgrade() -> None:
    """Make the table."""
    op.get_bind().exec_driver_sql(ATTEMPT)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
