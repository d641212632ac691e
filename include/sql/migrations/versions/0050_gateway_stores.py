"""Fallback stores of gateways, so that one that is lost with its disk is missed."""

from alembic import op

revision = "0050"
down_revision = "0049"

TABLE = """
CREATE TABLE gateway_store (
    store_id uuid NOT NULL,
    url text NOT NULL,
    first_seen_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    waiting bigint NOT NULL,
    set_aside bigint NOT NULL,
    lost bigint NOT NULL,
    given_up_at timestamptz,
    given_up_by text,
    reason text,
    PRIMARY KEY (store_id)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, UPDATE ON gateway_store TO batch;
GRANT SELECT ON gateway_store TO integrity;
COMMENT ON TABLE gateway_store IS
    'Fallback stores of gateways, as they last answered. One that no longer answers may have taken events along.';
COMMENT ON COLUMN gateway_store.given_up_at IS
    'When a person accepted that the events of a missing store are lost; null again once it answers.';
"""


def upgrade() -> None:
    """Create the table."""
    op.execute(TABLE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
