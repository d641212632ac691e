"""A generation knows what it was compared with: only then it is published, with what was served since."""

from alembic import op

revision = "0016"
down_revision = "0015"

VERIFIED = """
ALTER TABLE generation
    ADD COLUMN verified_at timestamptz,
    ADD COLUMN verified_shown_id bigint,
    ADD COLUMN verified_position jsonb;
COMMENT ON COLUMN generation.verified_at IS 'When it was last compared with what readers saw; null: never.';
COMMENT ON COLUMN generation.verified_shown_id IS
    'The generation that the day showed then; null: the speed layer''s rows alone.';
COMMENT ON COLUMN generation.verified_position IS
    'How far board-detail was served then, by topic id and partition: records from there on were not compared.';
-- what is or was shown was published without this condition
UPDATE generation SET verified_at = published_at, verified_shown_id = base_generation_id, verified_position = '{}'
 WHERE published_at IS NOT NULL;

-- A class can be listed and counted: records served after the comparison are listed.
CREATE OR REPLACE VIEW day_trust AS
SELECT p.day,
       p.held_reason,
       g.uncertified_reason,
       p.certified_at,
       COALESCE((SELECT jsonb_object_agg(c.class, c.count ORDER BY c.class)
                   FROM (SELECT each.class, sum(each.count) AS count
                           FROM (SELECT class, count(*) AS count FROM board_detail_correction
                                  WHERE generation_id = p.generation_id GROUP BY class
                                  UNION ALL
                                 SELECT key, value::bigint FROM jsonb_each_text(g.unlisted_corrections)) each
                          GROUP BY each.class) c), '{}') AS corrections,
       COALESCE((SELECT jsonb_object_agg(d.cause, d.count ORDER BY d.cause)
                   FROM dirty_day d WHERE d.day = p.day), '{}') AS dirty
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id;
"""


def upgrade() -> None:
    """Change the table and the view."""
    op.get_bind().exec_driver_sql(VERIFIED)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
