"""Publications that can be undone and redone; a view that reads one generation a day; who sees personal values."""

from alembic import op

revision = "0004"
down_revision = "0003"

# No foreign key to the generation: checking it would take longer than moving the row.
COVERED = """
CREATE TABLE board_detail_covered (
    board_id bigint,
    member_id bigint,
    nickname text,
    city text,
    phone text,
    title text,
    body text,
    modified_at timestamptz,
    created_at timestamptz,
    event_id text,
    board_partition integer,
    board_offset bigint,
    member_partition integer,
    member_offset bigint,
    kafka_partition integer,
    kafka_offset bigint,
    day date NOT NULL,
    deleted boolean NOT NULL,
    written_at timestamptz NOT NULL,
    generation_id bigint NOT NULL,
    covered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day, board_id)
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
SELECT board_id, member_id, nickname, city, phone, title, body, modified_at, created_at, event_id,
       board_partition, board_offset, member_partition, member_offset, kafka_partition, kafka_offset, p.day, x.finality
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT f.board_id, f.member_id, f.nickname, f.city, f.phone, f.title, f.body, f.modified_at,
              f.created_at, f.event_id, f.board_partition, f.board_offset, f.member_partition,
              f.member_offset, f.kafka_partition, f.kafka_offset, 'final'::text AS finality
         FROM board_detail_final f
        WHERE f.generation_id = p.generation_id
          AND NOT EXISTS (SELECT 1 FROM board_detail_live l WHERE l.day = p.day AND l.board_id = f.board_id)
       UNION ALL
       SELECT l.board_id, l.member_id, l.nickname, l.city, l.phone, l.title, l.body, l.modified_at,
              l.created_at, l.event_id, l.board_partition, l.board_offset, l.member_partition,
              l.member_offset, l.kafka_partition, l.kafka_offset, 'live'::text AS finality
         FROM board_detail_live l
        WHERE l.day = p.day AND NOT l.deleted) x;
"""

# Masking is an expression, not a function: the planner sees through the view, and unread columns cost nothing.
MASKED = """
CREATE VIEW board_detail_masked AS
SELECT board_id,
       member_id,
       nickname,
       city,
       CASE WHEN char_length(phone) > 4 THEN repeat('*', char_length(phone) - 2) || right(phone, 2)
            ELSE repeat('*', char_length(phone)) END AS phone,
       title,
       body,
       modified_at,
       created_at,
       event_id,
       board_partition,
       board_offset,
       member_partition,
       member_offset,
       kafka_partition,
       kafka_offset,
       day,
       finality
  FROM board_detail;
COMMENT ON VIEW board_detail_masked IS 'Every board with its author, as board_detail, with personal values masked.';
COMMENT ON COLUMN board_detail_masked.board_id IS 'Board id.';
COMMENT ON COLUMN board_detail_masked.member_id IS 'The author''s member id.';
COMMENT ON COLUMN board_detail_masked.nickname IS 'The author''s display name.';
COMMENT ON COLUMN board_detail_masked.city IS 'The author''s city.';
COMMENT ON COLUMN board_detail_masked.phone IS
    'The author''s phone number. Masked: its last two characters are shown; role analyst_personal sees it'
    ' whole in board_detail.';
COMMENT ON COLUMN board_detail_masked.title IS 'Title.';
COMMENT ON COLUMN board_detail_masked.body IS 'Text.';
COMMENT ON COLUMN board_detail_masked.modified_at IS 'When this version of the board was made.';
COMMENT ON COLUMN board_detail_masked.created_at IS 'When the board was posted.';
COMMENT ON COLUMN board_detail_masked.event_id IS
    'Identity of the event: the client''s Idempotency-Key, else made by the gateway.';
COMMENT ON COLUMN board_detail_masked.board_partition IS 'Partition of the board record this row was made from.';
COMMENT ON COLUMN board_detail_masked.board_offset IS 'Offset of the board record this row was made from.';
COMMENT ON COLUMN board_detail_masked.member_partition IS 'Partition of the member record this row was made from.';
COMMENT ON COLUMN board_detail_masked.member_offset IS 'Offset of the member record this row was made from.';
COMMENT ON COLUMN board_detail_masked.kafka_partition IS
    'Partition of the first board-detail record of this version; null if none.';
COMMENT ON COLUMN board_detail_masked.kafka_offset IS
    'Offset of the first board-detail record of this version; null if none.';
COMMENT ON COLUMN board_detail_masked.day IS
    'The day the board belongs to: the date of created_at in the pipeline''s time zone.';
COMMENT ON COLUMN board_detail_masked.finality IS
    '''final'' once the day was rebuilt and published, ''live'' until then.';
"""

GRANTS = """
REVOKE SELECT ON board_detail FROM analyst;
GRANT SELECT ON board_detail TO analyst_personal;
GRANT SELECT ON day_status TO analyst_personal;
GRANT SELECT ON board_detail_masked TO analyst, analyst_personal, batch;
"""


def upgrade() -> None:
    """Make and change the tables and views."""
    for block in (COVERED, PUBLICATION, VIEWS, MASKED, GRANTS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
