"""shown_rows takes names of its variables for these, even if a column of the pipeline has the same name."""

from alembic import op

revision = "0037"
down_revision = "0036"

SHOWN_ROWS = r"""
DO $$
BEGIN
    EXECUTE replace(pg_get_functiondef('shown_rows(date)'::regprocedure), E'\nDECLARE\n',
                    E'\n#variable_conflict use_variable\nDECLARE\n');
END
$$;
"""


def upgrade() -> None:
    """Replace the function's body."""
    op.execute(SHOWN_ROWS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
