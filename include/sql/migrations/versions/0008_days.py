"""Live rows of days with a year from 1 to 9999: clients have no date for others, and could not read the row."""

from alembic import op

revision = "0008"
down_revision = "0007"

# Rows that are there become rejects, in the words in which the stream refuses such a row from now on.
ROWS = """
INSERT INTO reject (topic, partition, "offset", reason, key, rejected_by)
SELECT 'board-detail', kafka_partition, kafka_offset,
       'PostgreSQL refuses the row: SQLSTATE 23514, constraint board_detail_live_has_a_year; the record stands in the'
       ' topic until it expires',
       convert_to(board_id::text, 'UTF8'), 'serve'
  FROM board_detail_live
 WHERE day NOT BETWEEN date '0001-01-01' AND date '9999-12-31' AND kafka_partition IS NOT NULL
    ON CONFLICT DO NOTHING;
DELETE FROM board_detail_live WHERE day NOT BETWEEN date '0001-01-01' AND date '9999-12-31';
DELETE FROM day_publication
 WHERE day NOT BETWEEN date '0001-01-01' AND date '9999-12-31' AND generation_id IS NULL;
"""

DAYS = """
ALTER TABLE board_detail_live
    ADD CONSTRAINT board_detail_live_has_a_year CHECK (day BETWEEN date '0001-01-01' AND date '9999-12-31');
"""


def upgrade() -> None:
    """Take the rows out, and change the table."""
    op.get_bind().exec_driver_sql(ROWS)
    op.get_bind().exec_driver_sql(DAYS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
