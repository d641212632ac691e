"""How far a rebuild is."""

from alembic import op

revision = "0005"
down_revision = "0004"

REBUILD_RUN = """
CREATE TABLE rebuild_run (
    generation_id bigint PRIMARY KEY REFERENCES generation ON DELETE CASCADE,
    day date NOT NULL,
    run_id text NOT NULL,
    host text NOT NULL,
    source text NOT NULL CHECK (source IN ('topic', 'archive')),
    phase text NOT NULL CHECK (phase IN ('reading', 'loading', 'finishing', 'built', 'failed')),
    records_total bigint NOT NULL,
    records_read bigint NOT NULL DEFAULT 0,
    parts_total integer NOT NULL DEFAULT 0,
    parts_loaded integer NOT NULL DEFAULT 0,
    rows_loaded bigint NOT NULL DEFAULT 0,
    error text,
    started_at timestamptz NOT NULL DEFAULT now(),
    phase_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
COMMENT ON TABLE rebuild_run IS 'How far each build of a day is, or was when it failed.';
GRANT SELECT, INSERT, UPDATE, DELETE ON rebuild_run TO batch;
ALTER TABLE generation ADD COLUMN starts jsonb, ADD COLUMN misplaced_count bigint;
COMMENT ON COLUMN generation.starts IS 'First offset read, a topic and partition.';
COMMENT ON COLUMN generation.misplaced_count IS
    'Boards of the day whose record is more than a day away from it in Kafka: a clock was wrong, or they came late.';
COMMENT ON COLUMN generation.content_hash IS
    'Sum of PostgreSQL''s hash of each row, without kafka_partition and kafka_offset: the same rows give the same.';
COMMENT ON COLUMN generation_load.part IS 'From 0 on the parts that hold rows; below, decisions about boards.';
"""


def upgrade() -> None:
    """Make the table."""
    op.get_bind().exec_driver_sql(REBUILD_RUN)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
