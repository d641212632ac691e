"""Functions that gave bounds to tables from before 0026, and that nothing calls any more."""

from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    """Drop them; tables get their bounds when they are attached."""
    op.execute("DROP FUNCTION generations.add_bounds, generations.validate_bounds")


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
