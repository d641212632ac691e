"""Days that stay as they are: a person acknowledged that they are not certified, or can no longer be rebuilt."""

from alembic import op

revision = "0044"
down_revision = "0043"

TABLE = """
CREATE TABLE acknowledged_day (
    day date NOT NULL,
    reason text NOT NULL,
    made_by text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE, DELETE ON acknowledged_day TO batch;
GRANT SELECT, DELETE ON acknowledged_day TO stream;
COMMENT ON TABLE acknowledged_day IS
    'Days that a person leaves as they are, by whom and why, until a record reaches them.';
CREATE VIEW day_acknowledgement AS
SELECT a.day, a.reason, a.made_by, a.made_at
  FROM acknowledged_day a
 WHERE NOT EXISTS (SELECT FROM day_publication p WHERE p.day = a.day AND p.moved_at > a.made_at)
   AND NOT EXISTS (SELECT FROM dirty_day d WHERE d.day = a.day AND d.last_at > a.made_at);
GRANT SELECT ON day_acknowledgement TO batch, integrity, analyst;
COMMENT ON VIEW day_acknowledgement IS
    'Acknowledged days that show what they showed then, and that no record reached since. The watch leaves them out.';
"""


def upgrade() -> None:
    """Create the table, and the view of those that still hold."""
    op.execute(TABLE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
