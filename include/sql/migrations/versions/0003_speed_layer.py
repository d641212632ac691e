"""One driver at a time, pending boards that end with their delivery, and what the speed layer shows of itself."""

from alembic import op

revision = "0003"
down_revision = "0002"

DRIVER = """
CREATE TABLE stream_driver (
    application text PRIMARY KEY,
    epoch bigint NOT NULL,
    driver_id text NOT NULL,
    host text NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stream_driver IS 'Which driver of an application may write; the one that took it last.';
COMMENT ON COLUMN stream_driver.epoch IS 'Grows with every driver: one that holds an older epoch writes no more.';
GRANT SELECT, INSERT, UPDATE ON stream_driver TO stream;
"""

LEDGER_REPAIR = """
CREATE TABLE ledger_repair (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    from_topic_id text NOT NULL,
    from_offset bigint,
    to_topic_id text NOT NULL,
    to_offset bigint NOT NULL,
    reason text NOT NULL,
    repaired_by text NOT NULL,
    repaired_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE ledger_repair IS 'Every entry of the offset ledger that a person moved, from where to where, and why.';
GRANT SELECT, INSERT ON ledger_repair TO stream;
GRANT SELECT ON ledger_repair TO batch;
"""

PENDING = """
ALTER TABLE pending_board ADD COLUMN version_at timestamptz, ADD COLUMN sent_at timestamptz;
UPDATE pending_board SET version_at = (convert_from(value, 'UTF8')::jsonb ->> 'modifiedAt')::timestamptz;
ALTER TABLE pending_board ALTER COLUMN version_at SET NOT NULL;
COMMENT ON COLUMN pending_board.version_at IS 'The version of the board that waits.';
COMMENT ON COLUMN pending_board.sent_at IS 'When it was sent to board-detail; the row goes when that is served.';
"""

PROGRESS = """
ALTER TABLE stream_progress
    ADD COLUMN epoch bigint,
    ADD COLUMN input_rate double precision,
    ADD COLUMN processed_rate double precision,
    ADD COLUMN lag_records bigint,
    ADD COLUMN lag_s double precision,
    ADD COLUMN phases jsonb,
    ADD COLUMN figures jsonb,
    ADD COLUMN waiting_for text;
COMMENT ON COLUMN stream_progress.input_rate IS 'Records a second that reached the topic, over the last 15 s.';
COMMENT ON COLUMN stream_progress.processed_rate IS
    'Records a second that were taken while batches ran, over the last 15 s.';
COMMENT ON COLUMN stream_progress.lag_records IS 'Records of the topic not taken yet.';
COMMENT ON COLUMN stream_progress.lag_s IS
    'How long the first record not taken yet has waited, at most; 0 when all are taken, null when not known.';
COMMENT ON COLUMN stream_progress.phases IS 'Seconds of the last batch by phase.';
COMMENT ON COLUMN stream_progress.figures IS 'Counts since the start of the driver, and the size of the member table.';
COMMENT ON COLUMN stream_progress.waiting_for IS 'What the query waits for, and since when; null while it works.';
"""


def upgrade() -> None:
    """Make and change the tables."""
    for block in (DRIVER, LEDGER_REPAIR, PENDING, PROGRESS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
