"""The schema as schema.sql made it before the first release. A database at this revision has it already."""

revision = "0054"
down_revision = None


def upgrade() -> None:
    """Change nothing: schema.sql makes a new database."""


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
