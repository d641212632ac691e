"""No query waits for a compiler: where a server has JIT, it compiled each partition that a query names."""

from alembic import op

revision = "0021"
down_revision = "0020"

JIT = """
DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %%I SET jit = off', current_database());
END
$$;
"""


def upgrade() -> None:
    """Set it for every session of the database."""
    op.get_bind().exec_driver_sql(JIT)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
