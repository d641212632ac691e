"""The catalogue of the raw archive: a file belongs to the archive when it is listed here."""

from alembic import op

revision = "0006"
down_revision = "0005"

ARCHIVE = """
CREATE TABLE archive_batch (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    starts jsonb NOT NULL,
    ends jsonb NOT NULL,
    newest jsonb NOT NULL,
    record_count bigint NOT NULL,
    gap jsonb NOT NULL DEFAULT '{}',
    gap_since timestamptz,
    gap_until timestamptz,
    gap_reason text,
    taken_at timestamptz NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((gap_until IS NULL) = (gap_reason IS NULL))
);
CREATE INDEX archive_batch_topic ON archive_batch (topic, topic_id, id);
COMMENT ON TABLE archive_batch IS 'Ranges of a topic that are in the archive, in the order they were written.';
COMMENT ON COLUMN archive_batch.starts IS 'First offset a partition.';
COMMENT ON COLUMN archive_batch.ends IS 'End offset (exclusive) a partition.';
COMMENT ON COLUMN archive_batch.newest IS 'Greatest timestamp of a record, ms since 1970, a partition with records.';
COMMENT ON COLUMN archive_batch.gap IS 'Offsets before this batch that are missing here: first and end, a partition.';
COMMENT ON COLUMN archive_batch.gap_since IS 'No missing record is older; null: none was ever archived before.';
COMMENT ON COLUMN archive_batch.gap_until IS 'No missing record is newer; null: none is missing before this batch.';
COMMENT ON COLUMN archive_batch.gap_reason IS 'Why they are missing: no archive yet, or a person accepted it.';
COMMENT ON COLUMN archive_batch.taken_at IS 'When the ends were looked up.';

CREATE TABLE archive_file (
    batch_id bigint NOT NULL REFERENCES archive_batch,
    kind text NOT NULL CHECK (kind IN ('records', 'versions', 'places')),
    day date,
    path text NOT NULL,
    record_count bigint NOT NULL,
    byte_count bigint NOT NULL,
    first_key bigint,
    last_key bigint,
    retired_at timestamptz,
    PRIMARY KEY (path)
);
CREATE INDEX archive_file_day ON archive_file (kind, day);
CREATE INDEX archive_file_batch ON archive_file (batch_id);
COMMENT ON TABLE archive_file IS 'Parquet files of the archive. A file that is not listed does not belong to it.';
COMMENT ON COLUMN archive_file.kind IS 'records: raw, as Kafka had them; versions: of the table, by the column; '
    'places: where the records of the output topic are, and what they were made from.';
COMMENT ON COLUMN archive_file.day IS 'The day of the records in it; null for tombstones, rare days and versions.';
COMMENT ON COLUMN archive_file.path IS 'Below the folder of the archive.';
COMMENT ON COLUMN archive_file.first_key IS 'Least id in it; null when no record has a readable one.';
COMMENT ON COLUMN archive_file.last_key IS 'Greatest id in it.';
COMMENT ON COLUMN archive_file.retired_at IS
    'When other files took its place. It is removed a day later: until then somebody may be reading it.';
GRANT SELECT, INSERT, UPDATE, DELETE ON archive_batch, archive_file TO batch;
GRANT SELECT, INSERT, UPDATE ON offset_ledger TO batch;
GRANT INSERT ON pipeline_setting TO batch;
"""


def upgrade() -> None:
    """Make the tables."""
    op.get_bind().exec_driver_sql(ARCHIVE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
