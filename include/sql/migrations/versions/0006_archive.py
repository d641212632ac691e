"""The catalogue of the raw archive: a file belongs to the archive when it is listed here."""

from alembic import op

revision = "0006"
down_revision = "0005"

ARCHIVE = """
CREATE TABLE archive_batch (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    topic_id text NOT NULL,
    starts jsonb NOT NULL,
    ends jsonb NOT NULL,
    record_count bigint NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX archive_batch_topic ON archive_batch (topic, topic_id, id);
COMMENT ON TABLE archive_batch IS 'Ranges of a raw topic that are in the archive, in the order they were written.';
COMMENT ON COLUMN archive_batch.starts IS 'First offset a partition.';
COMMENT ON COLUMN archive_batch.ends IS 'End offset (exclusive) a partition.';

CREATE TABLE archive_file (
    batch_id bigint NOT NULL REFERENCES archive_batch,
    kind text NOT NULL CHECK (kind IN ('records', 'versions', 'places')),
    day date,
    path text NOT NULL,
    record_count bigint NOT NULL,
    byte_count bigint NOT NULL,
    PRIMARY KEY (path)
);
CREATE INDEX archive_file_day ON archive_file (kind, day);
COMMENT ON TABLE archive_file IS 'Parquet files of the archive. A file that is not listed does not belong to it.';
COMMENT ON COLUMN archive_file.kind IS 'records: raw, as Kafka had them; versions: of the table, by the column; '
    'places: where the records of the output topic are, and what they were made from.';
COMMENT ON COLUMN archive_file.day IS 'The day of the records in it; null for tombstones and for versions.';
GRANT SELECT, INSERT, UPDATE, DELETE ON archive_batch, archive_file TO batch;
GRANT SELECT, INSERT, UPDATE ON offset_ledger TO batch;
"""


def upgrade() -> None:
    """Make the tables."""
    op.get_bind().exec_driver_sql(ARCHIVE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
