"""Days with covered rows that go one day are found without reading the deletions, which stay."""

from alembic import op

revision = "0029"
down_revision = "0028"

DROP = "DROP INDEX CONCURRENTLY IF EXISTS board_detail_covered_undoable"
CREATE = "CREATE INDEX CONCURRENTLY board_detail_covered_undoable ON board_detail_covered (day) WHERE NOT deleted"


def upgrade() -> None:
    """Make the index while the table is read and written."""
    with op.get_context().autocommit_block():
        for statement in (DROP, CREATE):
            op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
