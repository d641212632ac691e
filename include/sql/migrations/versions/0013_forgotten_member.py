"""Members whose data were removed on request: no rebuild shows them again."""

from alembic import op

revision = "0013"
down_revision = "0012"

FORGOTTEN = """
CREATE TABLE forgotten_member (
    member_id bigint PRIMARY KEY,
    reason text NOT NULL,
    made_by text NOT NULL,
    board_ids bigint[] NOT NULL DEFAULT '{}',
    removed jsonb NOT NULL DEFAULT '{}',
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE forgotten_member IS
    'Members whose data were removed on request. Rebuilds leave out their boards, wherever raw still has them.';
COMMENT ON COLUMN forgotten_member.reason IS 'Why, as the person who ran the command wrote it; no personal data.';
COMMENT ON COLUMN forgotten_member.board_ids IS 'Boards of the member that were found: they get tombstones.';
COMMENT ON COLUMN forgotten_member.removed IS 'How much the last run removed, by place.';
GRANT SELECT ON forgotten_member TO batch;
CREATE INDEX board_document_member ON board_document ((document ->> 'memberId'));
"""


def upgrade() -> None:
    """Make the table."""
    op.get_bind().exec_driver_sql(FORGOTTEN)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
