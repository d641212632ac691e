"""Certificates: the terms of a day's balance, each with the query that counts it; and why a day has none."""

from alembic import op

revision = "0007"
down_revision = "0006"

CERTIFICATE = """
CREATE TABLE day_certificate (
    day date NOT NULL,
    generation_id bigint NOT NULL REFERENCES generation ON DELETE CASCADE,
    term text NOT NULL,
    position integer NOT NULL,
    value text NOT NULL,
    query text NOT NULL,
    note text NOT NULL,
    counted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation_id, term)
);
CREATE INDEX day_certificate_day ON day_certificate (day);
COMMENT ON TABLE day_certificate IS 'What a published day was certified by: each term, and the query that counts it.';
COMMENT ON COLUMN day_certificate.value IS 'A count, or the hash, as text.';
COMMENT ON COLUMN day_certificate.query IS
    'Run it to count the term again: SQL as role batch, or a call to a gateway where it begins with GET.';
ALTER TABLE generation ADD COLUMN uncertified_reason text;
COMMENT ON COLUMN generation.uncertified_reason IS
    'Why its day could not be certified when that was last tried; null when it was, or was not tried.';
ALTER TABLE generation ADD COLUMN unlisted_corrections jsonb;
COMMENT ON COLUMN generation.unlisted_corrections IS
    'Counts by class of a large day of which nothing was shown before: its corrections are not listed one by one.';
-- text in one form, so that its order is that of time: a day's documents are found without reading all
CREATE INDEX board_document_created ON board_document ((document ->> 'createdAt') COLLATE "C");
GRANT SELECT, INSERT, UPDATE, DELETE ON day_certificate TO batch;
GRANT SELECT ON day_certificate TO analyst;
GRANT SELECT ON board_document TO batch;
"""

TRUST = """
CREATE VIEW day_trust AS
SELECT p.day,
       p.held_reason,
       g.uncertified_reason,
       p.certified_at,
       COALESCE((SELECT jsonb_object_agg(c.class, c.count ORDER BY c.class)
                   FROM (SELECT class, count(*) FROM board_detail_correction
                          WHERE generation_id = p.generation_id GROUP BY class) c), '{}')
           || COALESCE(g.unlisted_corrections, '{}') AS corrections,
       COALESCE((SELECT jsonb_object_agg(d.cause, d.count ORDER BY d.cause)
                   FROM dirty_day d WHERE d.day = p.day), '{}') AS dirty
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id;
COMMENT ON VIEW day_trust IS 'What stands against trusting a day: corrections by class, what arrived since by cause.';
COMMENT ON COLUMN day_trust.day IS 'Date in the pipeline''s time zone.';
COMMENT ON COLUMN day_trust.held_reason IS 'Why a person undid the last publication; the night leaves the day alone.';
COMMENT ON COLUMN day_trust.uncertified_reason IS 'Why the published generation could not be certified.';
COMMENT ON COLUMN day_trust.certified_at IS 'When it was certified.';
COMMENT ON COLUMN day_trust.corrections IS 'Differences that the published rebuild corrected, counted by class.';
COMMENT ON COLUMN day_trust.dirty IS 'What reached the day after it was published, counted by cause.';
GRANT SELECT ON day_trust TO analyst, batch;
GRANT SELECT ON archive_batch TO analyst;
"""


def upgrade() -> None:
    """Make the table and the view."""
    for block in (CERTIFICATE, TRUST):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
