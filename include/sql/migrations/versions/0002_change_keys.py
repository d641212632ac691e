"""The senders' keys of changes to members and boards: a retried change finds what the first one saved."""

from alembic import op

revision = "0002"
down_revision = "0001"

CHANGE_KEYS = """
CREATE TABLE change_key (
    scope text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    topic text NOT NULL,
    row_id bigint,
    created_at timestamptz,
    modified_at timestamptz,
    value jsonb,
    made_at timestamptz NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX change_key_made_at ON change_key (made_at);
CREATE INDEX change_key_row ON change_key (topic, row_id);
COMMENT ON TABLE change_key IS 'Idempotency-Key of each change, saved with its row; forgotten after the window.';
COMMENT ON COLUMN change_key.scope IS 'Whose key it is: the name of the token.';
COMMENT ON COLUMN change_key.fingerprint IS 'SHA-256 of method, path and body: another call may not use the key.';
COMMENT ON COLUMN change_key.value IS 'The value as its record carries it, so that a retry produces the same one; '
    'null for a deletion.';
GRANT SELECT, INSERT, UPDATE, DELETE ON change_key TO gateway;
"""


def upgrade() -> None:
    """Make the table."""
    op.get_bind().exec_driver_sql(CHANGE_KEYS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
