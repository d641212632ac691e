"""Publications that can be undone and redone; a view that reads one generation a day; who sees personal values."""

from alembic import op

from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.sql.named import COORDINATES, fill

revision = "0004"
down_revision = "0003"

# No foreign key to the generation: checking it would take longer than moving the row.
COVERED = """
CREATE TABLE board_detail_covered (
    {{served_typed}},
    day date NOT NULL,
    deleted boolean NOT NULL,
    written_at timestamptz NOT NULL,
    generation_id bigint NOT NULL,
    covered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day, {{key}})
);
COMMENT ON TABLE board_detail_covered IS
    'Live rows that a publication took out of the view: an undo puts them back as they were.';
COMMENT ON COLUMN board_detail_covered.generation_id IS 'The generation whose cut covered the row.';
GRANT SELECT, INSERT, UPDATE, DELETE ON board_detail_covered TO batch;
GRANT SELECT, INSERT, UPDATE ON board_detail_covered TO stream;
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
COMMENT ON COLUMN publication.from_generation_id IS 'Null: the speed layer''s rows alone.';
COMMENT ON COLUMN publication.to_generation_id IS 'Null: the speed layer''s rows alone.';
GRANT SELECT, INSERT ON publication TO batch;

ALTER TABLE day_publication ADD COLUMN held_reason text, ADD COLUMN undoable_since timestamptz;
COMMENT ON COLUMN day_publication.held_reason IS
    'Why a person undid the last publication; the nightly run leaves the day alone until one is made by hand.';
COMMENT ON COLUMN day_publication.undoable_since IS
    'What the day showed before then cannot be shown again: live rows that were covered earlier are gone.';
ALTER TABLE generation ADD COLUMN identical_to bigint;
COMMENT ON COLUMN generation.identical_to IS
    'Given up because the day showed that generation, with the same content; its cut then stands for this one.';
"""

# One pass over the days, and for each of them its generation: so the partition is chosen when the query runs, also for
# a prepared statement, and the others are not read. Written as a plain join it would be a hash join, which reads every
# generation that is kept of the day. The second half of the UNION ALL keeps the planner from making it one.
VIEWS = """
CREATE OR REPLACE VIEW board_detail AS
SELECT {{served}}, p.day, x.finality
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT {{served_f}}, 'final'::text AS finality
         FROM board_detail_final f
        WHERE f.generation_id = p.generation_id
          AND NOT EXISTS (SELECT 1 FROM board_detail_live l WHERE l.day = p.day AND l.{{key}} = f.{{key}})
       UNION ALL
       SELECT {{served_l}}, 'live'::text AS finality
         FROM board_detail_live l
        WHERE l.day = p.day AND NOT l.deleted) x;
"""

GRANTS = """
REVOKE SELECT ON board_detail FROM analyst;
GRANT SELECT ON board_detail TO analyst_personal;
GRANT SELECT ON day_status TO analyst_personal;
GRANT SELECT ON board_detail_masked TO analyst, analyst_personal, batch;
"""

MASKED = "Masked: its last two characters are shown; role analyst_personal sees it whole in board_detail."
COMMENTS = {
    "day": "The day the board belongs to: the date of created_at in the pipeline's time zone.",
    "finality": "'final' once the day was rebuilt and published, 'live' until then.",
}


def upgrade() -> None:
    """Make and change the tables and views."""
    for block in (COVERED, PUBLICATION, VIEWS):
        op.get_bind().exec_driver_sql(fill(block, PIPELINE))
    personal = {field.column for field in PIPELINE.output.fields if field.personal}
    columns = [*PIPELINE.relational_columns, *COORDINATES, *COMMENTS]
    shown = ",\n       ".join(_masked(name) if name in personal else name for name in columns)
    op.get_bind().exec_driver_sql(f"CREATE VIEW board_detail_masked AS\nSELECT {shown}\n  FROM board_detail")
    comments = {name: PIPELINE.description(name) for name in PIPELINE.relational_columns}
    comments |= {name: text for name, (_, text) in COORDINATES.items()} | COMMENTS
    _comment("VIEW board_detail_masked", "Every board with its author, as board_detail, with personal values masked.")
    for name, text in comments.items():
        _comment(f"COLUMN board_detail_masked.{name}", f"{text} {MASKED}" if name in personal else text)
    op.get_bind().exec_driver_sql(GRANTS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")


def _masked(column: str) -> str:
    """An expression, not a function: the planner sees through the view, and unread columns cost nothing."""
    if PIPELINE.postgres_type(column) != "text":
        return f"NULL::{PIPELINE.postgres_type(column)} AS {column}"
    length = f"char_length({column})"
    return (
        f"CASE WHEN {length} > 4 THEN repeat('*', {length} - 2) || right({column}, 2) "
        f"ELSE repeat('*', {length}) END AS {column}"
    )


def _comment(what: str, text: str) -> None:
    literal = text.replace("'", "''")
    op.get_bind().exec_driver_sql(f"COMMENT ON {what} IS '{literal}'")
