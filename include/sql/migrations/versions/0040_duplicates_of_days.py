"""day_trust says how many duplicates of the stream the published rebuild found."""

from alembic import op

revision = "0040"
down_revision = "0039"

VIEW = r"""
CREATE OR REPLACE VIEW day_trust AS
SELECT p.day,
       p.held_reason,
       g.uncertified_reason,
       p.certified_at,
       COALESCE((SELECT jsonb_object_agg(c.class, c.count ORDER BY c.class)
                   FROM (SELECT each.class, sum(each.count) AS count
                           FROM (SELECT class, count(*) AS count FROM detail_correction
                                  WHERE generation_id = p.generation_id GROUP BY class
                                  UNION ALL
                                 SELECT key, value::bigint FROM jsonb_each_text(g.unlisted_corrections)) each
                          GROUP BY each.class) c), '{}') AS corrections,
       COALESCE((SELECT jsonb_object_agg(d.cause, d.count ORDER BY d.cause)
                   FROM dirty_day d WHERE d.day = p.day), '{}') AS dirty,
       g.duplicate_count
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id;
COMMENT ON COLUMN day_trust.duplicate_count IS
    'Records of the output topic beyond the first of their version, as the published rebuild counted them.';
"""


def upgrade() -> None:
    """Replace the view."""
    op.execute(VIEW)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
