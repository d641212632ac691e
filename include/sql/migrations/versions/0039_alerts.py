"""Alerts that are open, and the notices of them that were sent."""

from alembic import op

revision = "0039"
down_revision = "0038"

TABLES = """
CREATE TABLE alert (
    id bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    subject text NOT NULL,
    severity text NOT NULL,
    message text NOT NULL,
    runbook text NOT NULL,
    since timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    PRIMARY KEY (id),
    CHECK (severity IN ('warning', 'critical'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE UNIQUE INDEX alert_open ON alert (name, subject) WHERE (closed_at IS NULL);
GRANT SELECT, INSERT, UPDATE, DELETE ON alert TO batch;
GRANT SELECT ON alert TO integrity, analyst;
COMMENT ON TABLE alert IS 'What watch_pipeline found: one row from the first finding until it is gone.';
COMMENT ON COLUMN alert.subject IS 'A day, a gateway, a query or a DAG; empty: the pipeline.';
COMMENT ON COLUMN alert.message IS 'State, value and remedy, as last found.';
COMMENT ON COLUMN alert.runbook IS 'The runbook, by its name in docs/runbooks.';
COMMENT ON COLUMN alert.since IS 'Since when it lasts, as far as that was known when it was found.';
COMMENT ON COLUMN alert.closed_at IS 'When it was no longer found; null while it lasts.';

CREATE TABLE alert_notice (
    alert_id bigint NOT NULL,
    event text NOT NULL,
    channel text NOT NULL,
    tries integer NOT NULL DEFAULT 0,
    sent_at timestamptz,
    PRIMARY KEY (alert_id, event, channel),
    FOREIGN KEY (alert_id) REFERENCES alert ON DELETE CASCADE,
    CHECK (event IN ('opened', 'closed'))
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
CREATE INDEX alert_notice_unsent ON alert_notice (channel) WHERE (sent_at IS NULL);
GRANT SELECT, INSERT, UPDATE, DELETE ON alert_notice TO batch;
COMMENT ON TABLE alert_notice IS 'The notices of alerts that begin and end, one of each channel.';
COMMENT ON COLUMN alert_notice.tries IS 'How often the channel did not take it.';
COMMENT ON COLUMN alert_notice.sent_at IS 'When the channel took it; null: the next watch sends it.';
"""


def upgrade() -> None:
    """Create the tables."""
    op.execute(TABLES)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
