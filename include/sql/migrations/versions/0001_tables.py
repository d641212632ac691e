"""The tables of the system of record, the speed layer, the batch layer and the serving view."""

from alembic import op

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
    day date,
    deleted boolean NOT NULL DEFAULT false,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (board_id)
);
CREATE INDEX board_detail_live_day ON board_detail_live (day, board_id);
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
SELECT f.board_id, f.member_id, f.nickname, f.city, f.phone, f.title, f.body, f.modified_at, f.created_at,
       f.event_id, f.board_partition, f.board_offset, f.member_partition, f.member_offset,
       f.kafka_partition, f.kafka_offset, f.day, 'final'::text AS finality
  FROM board_detail_final f
  JOIN day_publication p ON p.generation_id = f.generation_id AND p.day = f.day
 WHERE NOT EXISTS (SELECT 1 FROM board_detail_live l WHERE l.day = f.day AND l.board_id = f.board_id)
UNION ALL
SELECT l.board_id, l.member_id, l.nickname, l.city, l.phone, l.title, l.body, l.modified_at, l.created_at,
       l.event_id, l.board_partition, l.board_offset, l.member_partition, l.member_offset,
       l.kafka_partition, l.kafka_offset, l.day, 'live'::text AS finality
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

COMMENTS = """
COMMENT ON VIEW board_detail IS 'Every board with its author: final days as rebuilt, the rest as streamed.';
COMMENT ON VIEW day_status IS 'How far each day is, and how much it can be trusted.';
COMMENT ON COLUMN board_detail.board_id IS 'Board id.';
COMMENT ON COLUMN board_detail.member_id IS 'The author''s member id.';
COMMENT ON COLUMN board_detail.nickname IS 'The author''s display name.';
COMMENT ON COLUMN board_detail.city IS 'The author''s city.';
COMMENT ON COLUMN board_detail.phone IS 'The author''s phone number.';
COMMENT ON COLUMN board_detail.title IS 'Title.';
COMMENT ON COLUMN board_detail.body IS 'Text.';
COMMENT ON COLUMN board_detail.modified_at IS 'When this version of the board was made.';
COMMENT ON COLUMN board_detail.created_at IS 'When the board was posted.';
COMMENT ON COLUMN board_detail.event_id IS
    'Identity of the event: the client''s Idempotency-Key, else made by the gateway.';
COMMENT ON COLUMN board_detail.board_partition IS 'Partition of the board record this row was made from.';
COMMENT ON COLUMN board_detail.board_offset IS 'Offset of the board record this row was made from.';
COMMENT ON COLUMN board_detail.member_partition IS 'Partition of the member record this row was made from.';
COMMENT ON COLUMN board_detail.member_offset IS 'Offset of the member record this row was made from.';
COMMENT ON COLUMN board_detail.kafka_partition IS
    'Partition of the first board-detail record of this version; null if none.';
COMMENT ON COLUMN board_detail.kafka_offset IS 'Offset of the first board-detail record of this version; null if none.';
COMMENT ON COLUMN board_detail.day IS
    'The day the board belongs to: the date of created_at in the pipeline''s time zone.';
COMMENT ON COLUMN board_detail.finality IS '''final'' once the day was rebuilt and published, ''live'' until then.';
COMMENT ON COLUMN day_status.day IS 'Date in the pipeline''s time zone.';
COMMENT ON COLUMN day_status.status IS
    'provisional (speed layer only), rebuilt (published) or certified (its balance adds up).';
COMMENT ON COLUMN day_status.raw_distinct IS
    'Distinct boards of the day in the raw topic at the cut, without those deleted or moved.';
COMMENT ON COLUMN day_status.row_count IS 'Rows of the published generation.';
COMMENT ON COLUMN day_status.pending_count IS 'Boards waiting for their member.';
COMMENT ON COLUMN day_status.rejected_count IS 'Boards whose records break the contract.';
COMMENT ON COLUMN day_status.correction_count IS 'Differences the last published rebuild corrected.';
COMMENT ON COLUMN day_status.live_row_count IS 'Rows the speed layer holds on top of the published generation.';
COMMENT ON COLUMN day_status.dirty_count IS 'Records that reached the day after it was published.';
COMMENT ON COLUMN day_status.generation_id IS 'The published generation; null while provisional.';
COMMENT ON COLUMN day_status.published_at IS 'When it was published.';
COMMENT ON COLUMN day_status.rebuildable_until IS 'The first date on which raw no longer holds all of the day.';
"""

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
    for block in (SYSTEM_OF_RECORD, SPEED_LAYER, BATCH_LAYER, VIEWS, COMMENTS, GRANTS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse: data would be lost."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
