"""The tables of the system of record, the speed layer, the batch layer and the serving view."""

from alembic import op

from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.sql.named import COORDINATES, fill

revision = "0001"
down_revision = None

SYSTEM_OF_RECORD = """
CREATE SEQUENCE member_id_seq;
CREATE TABLE member (
    id bigint PRIMARY KEY DEFAULT nextval('member_id_seq'),
    nickname text NOT NULL,
    city text,
    phone text,
    email text,
    created_at timestamptz NOT NULL,
    modified_at timestamptz NOT NULL,
    deleted_at timestamptz
);
CREATE SEQUENCE board_id_seq;
CREATE TABLE board_document (
    id bigint PRIMARY KEY DEFAULT nextval('board_id_seq'),
    document jsonb NOT NULL,
    modified_at timestamptz NOT NULL,
    deleted_at timestamptz
);
COMMENT ON TABLE member IS 'System of record: members as the API last saved them.';
COMMENT ON TABLE board_document IS 'System of record: boards as documents, as the API last saved them.';
"""

SPEED_LAYER = """
CREATE TABLE board_detail_live (
    {{served_typed}},
    day date,
    deleted boolean NOT NULL DEFAULT false,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY ({{key}})
);
CREATE INDEX board_detail_live_day ON board_detail_live (day, {{key}});
COMMENT ON TABLE board_detail_live IS 'Speed layer: the newest version of each board not yet in a published day.';
COMMENT ON COLUMN board_detail_live.deleted IS 'The board was deleted; the row hides it until its day is rebuilt.';

CREATE TABLE offset_ledger (
    consumer text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic_id, partition)
);
COMMENT ON TABLE offset_ledger IS 'The next offset to take, committed with the data it stands for.';

CREATE TABLE reject (
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    reason text NOT NULL,
    key bytea,
    value bytea,
    kafka_timestamp timestamptz,
    rejected_by text NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, partition, "offset")
);
COMMENT ON TABLE reject IS 'Records that break their contract, with the reason and the record itself.';

CREATE TABLE pending_board (
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    board_id bigint NOT NULL,
    member_id bigint NOT NULL,
    day date NOT NULL,
    key bytea,
    value bytea NOT NULL,
    kafka_timestamp timestamptz NOT NULL,
    event_id text,
    accepted_at timestamptz,
    pending_since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, partition, "offset")
);
CREATE INDEX pending_board_member ON pending_board (member_id);
CREATE INDEX pending_board_board ON pending_board (board_id);
COMMENT ON TABLE pending_board IS 'Boards whose member is not known yet, whole, until the member comes.';

CREATE TABLE stream_progress (
    query text PRIMARY KEY,
    driver_id text NOT NULL,
    batch_id bigint,
    input_rows bigint NOT NULL DEFAULT 0,
    duration_ms bigint,
    total_rows bigint NOT NULL DEFAULT 0,
    offsets jsonb,
    heartbeat_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE stream_progress IS 'What each streaming query last did, and when its driver was last alive.';
"""

BATCH_LAYER = """
CREATE TABLE generation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day date NOT NULL,
    run_id text NOT NULL,
    reason text,
    status text NOT NULL DEFAULT 'building'
        CHECK (status IN ('building', 'built', 'published', 'superseded', 'discarded')),
    cut jsonb NOT NULL,
    base_generation_id bigint,
    raw_distinct bigint,
    row_count bigint,
    pending_count bigint,
    rejected_count bigint,
    duplicate_count bigint,
    content_hash text,
    created_at timestamptz NOT NULL DEFAULT now(),
    built_at timestamptz,
    published_at timestamptz
);
CREATE INDEX generation_day ON generation (day, id);
COMMENT ON TABLE generation IS 'One build of one day from the raw topics up to a cut.';
COMMENT ON COLUMN generation.base_generation_id IS 'What the day showed when the build began: it replaces only that.';
COMMENT ON COLUMN generation.cut IS 'End offset (exclusive) a raw topic and partition.';

CREATE TABLE generation_load (
    generation_id bigint NOT NULL REFERENCES generation ON DELETE CASCADE,
    part integer NOT NULL,
    row_count bigint NOT NULL,
    PRIMARY KEY (generation_id, part)
);
COMMENT ON TABLE generation_load IS 'Parts already loaded: a retried task finds its part here and loads nothing.';

CREATE TABLE generation_excluded (
    generation_id bigint NOT NULL REFERENCES generation ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('pending', 'rejected', 'deleted', 'moved')),
    identity text NOT NULL,
    board_id bigint,
    board_partition integer NOT NULL,
    board_offset bigint NOT NULL,
    reason text,
    PRIMARY KEY (generation_id, kind, identity)
);
COMMENT ON TABLE generation_excluded IS 'Boards of the day that are not rows: pending, rejected, deleted or moved.';

CREATE TABLE board_detail_final (
    generation_id bigint NOT NULL,
    day date NOT NULL,
    {{served_typed}},
    replayed boolean NOT NULL DEFAULT false
) PARTITION BY LIST (generation_id);
COMMENT ON TABLE board_detail_final IS 'Batch layer: the rows of each rebuilt day, one partition a generation.';

CREATE TABLE day_publication (
    day date PRIMARY KEY,
    generation_id bigint REFERENCES generation,
    cut jsonb,
    status text NOT NULL DEFAULT 'provisional' CHECK (status IN ('provisional', 'rebuilt', 'certified')),
    raw_distinct bigint,
    row_count bigint,
    pending_count bigint,
    rejected_count bigint,
    content_hash text,
    published_at timestamptz,
    certified_at timestamptz
);
COMMENT ON TABLE day_publication IS 'Which generation of a day the view shows.';

CREATE TABLE board_detail_correction (
    generation_id bigint NOT NULL REFERENCES generation ON DELETE CASCADE,
    day date NOT NULL,
    board_id bigint NOT NULL,
    class text NOT NULL CHECK (class IN ('duplicate', 'missing', 'recovered_from_fallback', 'member_version_changed',
        'late', 'rejected', 'pending', 'deleted', 'moved', 'unexplained')),
    shown jsonb,
    rebuilt jsonb,
    PRIMARY KEY (generation_id, board_id, class)
);
CREATE INDEX board_detail_correction_day ON board_detail_correction (day);
COMMENT ON TABLE board_detail_correction IS 'Every difference between what was shown of a day and what was rebuilt.';

CREATE TABLE dirty_day (
    day date NOT NULL,
    cause text NOT NULL,
    count bigint NOT NULL,
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (day, cause)
);
COMMENT ON TABLE dirty_day IS 'Published days that something reached afterwards, with cause and count.';

CREATE TABLE pipeline_setting (name text PRIMARY KEY, value text NOT NULL);
COMMENT ON TABLE pipeline_setting IS 'Settings of the deployment that views need.';
"""

VIEWS = """
CREATE VIEW board_detail AS
SELECT {{served_f}}, f.day, 'final'::text AS finality
  FROM board_detail_final f
  JOIN day_publication p ON p.generation_id = f.generation_id AND p.day = f.day
 WHERE NOT EXISTS (SELECT 1 FROM board_detail_live l WHERE l.day = f.day AND l.{{key}} = f.{{key}})
UNION ALL
SELECT {{served_l}}, l.day, 'live'::text AS finality
  FROM board_detail_live l
 WHERE NOT l.deleted;

CREATE VIEW day_status AS
SELECT p.day,
       p.status,
       p.raw_distinct,
       COALESCE(p.row_count, 0) AS row_count,
       COALESCE(p.pending_count, (SELECT count(*) FROM pending_board b WHERE b.day = p.day)) AS pending_count,
       COALESCE(p.rejected_count, 0) AS rejected_count,
       (SELECT count(*) FROM board_detail_correction c WHERE c.generation_id = p.generation_id) AS correction_count,
       (SELECT count(*) FROM board_detail_live l WHERE l.day = p.day AND NOT l.deleted) AS live_row_count,
       (SELECT COALESCE(sum(d.count), 0)::bigint FROM dirty_day d WHERE d.day = p.day) AS dirty_count,
       p.generation_id,
       p.published_at,
       p.day + (SELECT s.value::integer FROM pipeline_setting s WHERE s.name = 'board_retention_days')
           AS rebuildable_until
  FROM day_publication p;
"""

VIEW_COMMENTS = {
    "day": "The day the board belongs to: the date of created_at in the pipeline's time zone.",
    "finality": "'final' once the day was rebuilt and published, 'live' until then.",
}
STATUS_COMMENTS = {
    "day": "Date in the pipeline's time zone.",
    "status": "provisional (speed layer only), rebuilt (published) or certified (its balance adds up).",
    "raw_distinct": "Distinct boards of the day in the raw topic at the cut, without those deleted or moved.",
    "row_count": "Rows of the published generation.",
    "pending_count": "Boards waiting for their member.",
    "rejected_count": "Boards whose records break the contract.",
    "correction_count": "Differences the last published rebuild corrected.",
    "live_row_count": "Rows the speed layer holds on top of the published generation.",
    "dirty_count": "Records that reached the day after it was published.",
    "generation_id": "The published generation; null while provisional.",
    "published_at": "When it was published.",
    "rebuildable_until": "The first date on which raw no longer holds all of the day.",
}

GRANTS = """
GRANT SELECT, INSERT, UPDATE ON member, board_document TO gateway;
GRANT USAGE ON SEQUENCE member_id_seq, board_id_seq TO gateway;
GRANT SELECT, INSERT, UPDATE, DELETE ON board_detail_live, offset_ledger, reject, pending_board, stream_progress,
    dirty_day TO stream;
GRANT SELECT, INSERT, UPDATE ON day_publication TO stream;
GRANT SELECT ON board_detail_final, generation, generation_excluded, board_detail TO stream;
GRANT SELECT, INSERT, UPDATE, DELETE ON generation, generation_load, generation_excluded, day_publication,
    board_detail_correction, dirty_day, reject TO batch;
GRANT SELECT, UPDATE, DELETE ON board_detail_live TO batch;
GRANT SELECT ON board_detail, day_status, pending_board, offset_ledger, stream_progress, pipeline_setting TO batch;
GRANT CREATE ON SCHEMA public TO batch;
GRANT SELECT ON board_detail, day_status TO analyst;
ALTER TABLE board_detail_final OWNER TO batch;
GRANT SELECT ON board_detail_final TO pipeline_owner;
"""


def upgrade() -> None:
    """Make everything, from nothing."""
    for block in (SYSTEM_OF_RECORD, SPEED_LAYER, BATCH_LAYER, VIEWS):
        op.get_bind().exec_driver_sql(fill(block, PIPELINE))
    comments = {name: PIPELINE.description(name) for name in PIPELINE.relational_columns}
    comments |= {name: text for name, (_, text) in COORDINATES.items()}
    _comment("VIEW", "board_detail", "Every board with its author: final days as rebuilt, the rest as streamed.")
    _comment("VIEW", "day_status", "How far each day is, and how much it can be trusted.")
    for name, text in (comments | VIEW_COMMENTS).items():
        _comment("COLUMN", f"board_detail.{name}", text)
    for name, text in STATUS_COMMENTS.items():
        _comment("COLUMN", f"day_status.{name}", text)
    op.get_bind().exec_driver_sql(GRANTS)


def downgrade() -> None:
    """Refuse: data would be lost."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")


def _comment(kind: str, name: str, text: str) -> None:
    literal = text.replace("'", "''")
    op.get_bind().exec_driver_sql(f"COMMENT ON {kind} {name} IS '{literal}'")
