"""Certificates: the terms of a day's balance, each with the query that counts it."""

from alembic import op

revision = "0007"
down_revision = "0006"

CERTIFICATE = """
CREATE TABLE day_certificate (
    day date NOT NULL,
    generation_id bigint NOT NULL REFERENCES generation ON DELETE CASCADE,
    term text NOT NULL,
    position integer NOT NULL,
    value bigint,
    query text NOT NULL,
    note text,
    counted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation_id, term)
);
CREATE INDEX day_certificate_day ON day_certificate (day);
COMMENT ON TABLE day_certificate IS 'What a published day was certified by: each term, and the query that counts it.';
COMMENT ON COLUMN day_certificate.query IS 'Run it to count the term again.';
GRANT SELECT, INSERT, UPDATE, DELETE ON day_certificate TO batch;
GRANT SELECT ON day_certificate TO analyst;
GRANT SELECT ON board_document TO batch;
"""


def upgrade() -> None:
    """Make the table."""
    op.get_bind().exec_driver_sql(CERTIFICATE)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
