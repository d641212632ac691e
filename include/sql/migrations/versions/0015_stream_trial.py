"""Where a query of the stream does not come further, and how often."""

from alembic import op

revision = "0015"
down_revision = "0014"

TRIAL = """
CREATE TABLE stream_trial (
    consumer text NOT NULL,
    topic_id text NOT NULL,
    at jsonb NOT NULL,
    size integer,
    failures integer NOT NULL,
    rejected integer NOT NULL,
    reason text,
    tried_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic_id)
);
COMMENT ON TABLE stream_trial IS 'Where each query last began, and what failed there; kept over drivers that end.';
COMMENT ON COLUMN stream_trial.size IS 'How many offsets are tried at a time; null while batches are taken whole.';
COMMENT ON COLUMN stream_trial.failures IS
    'How often the present step failed; while size is null, drivers that began here and ended without a word.';
COMMENT ON COLUMN stream_trial.rejected IS 'Records in a row that became rejects because they could not be taken.';
GRANT SELECT, INSERT, UPDATE ON stream_trial TO stream;
GRANT SELECT ON stream_trial TO batch;
"""


def upgrade() -> None:
    """Make the table."""
    op.get_bind().exec_driver_sql(TRIAL)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
