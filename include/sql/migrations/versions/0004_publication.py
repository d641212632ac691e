"""Publications that can be undone and redone, and what an analyst without further rights may see."""

from alembic import op

from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.sql.named import fill

revision = "0004"
down_revision = "0003"

COVERED = """
CREATE TABLE board_detail_covered (
    {{served_typed}},
    day date NOT NULL,
    deleted boolean NOT NULL,
    written_at timestamptz NOT NULL,
    generation_id bigint NOT NULL REFERENCES generation ON DELETE CASCADE,
    covered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ({{key}})
);
CREATE INDEX board_detail_covered_day ON board_detail_covered (day);
COMMENT ON TABLE board_detail_covered IS
    'Live rows that a publication took out of the view: an undo puts them back as they were.';
GRANT SELECT, INSERT, UPDATE, DELETE ON board_detail_covered TO batch;
GRANT INSERT ON board_detail_live TO batch;
"""

PUBLICATION = """
CREATE TABLE publication (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day date NOT NULL,
    action text NOT NULL CHECK (action IN ('publish', 'undo', 'redo')),
    from_generation_id bigint,
    to_generation_id bigint,
    reason text,
    made_by text NOT NULL,
    covered_rows bigint NOT NULL,
    restored_rows bigint NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX publication_day ON publication (day, id);
COMMENT ON TABLE publication IS 'Every change of what a day shows: from which generation to which, by whom and why.';
ALTER TABLE day_publication ADD COLUMN held_reason text;
COMMENT ON COLUMN day_publication.held_reason IS
    'Why a person undid the last publication; the nightly run leaves the day alone until one is made by hand.';
GRANT SELECT, INSERT ON publication TO batch;
"""


def upgrade() -> None:
    """Make and change the tables."""
    for block in (COVERED, PUBLICATION):
        op.get_bind().exec_driver_sql(fill(block, PIPELINE))


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
