"""VACUUM does not shorten the tables that analysts' queries read, so that a standby need not wait for their end."""

from alembic import op

revision = "0030"
down_revision = "0029"

# A file is shortened under an exclusive lock. On the primary VACUUM gives way to readers; a standby repeats the lock,
# waits for readers, and lets no other reader of the table begin.
TABLES = """
ALTER TABLE board_detail_live SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE day_publication SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE pending_board SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE dirty_day SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE board_detail_correction SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE generation SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE day_certificate SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE stream_progress SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE offset_ledger SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE pipeline_setting SET (vacuum_truncate = off, toast.vacuum_truncate = off);
"""


def upgrade() -> None:
    """Set it; readers and writers go on meanwhile."""
    op.get_bind().exec_driver_sql(TABLES)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
