"""A query of one day takes that day's tables alone; live rows below a day's cut are left out by the view itself."""

from alembic import op

revision = "0010"
down_revision = "0009"

# The end offsets of a cut as arrays, one element a partition, so that a row is compared without reading JSON.
FUNCTIONS = """
CREATE FUNCTION cut_ends(cut jsonb, topic text) RETURNS bigint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (SELECT array_agg((cut -> topic ->> number::text)::bigint ORDER BY number)
          FROM generate_series(0, (SELECT max(name::integer) FROM jsonb_object_keys(cut -> topic) AS name)) AS number);
COMMENT ON FUNCTION cut_ends IS
    'End offsets of a topic in a cut. Element 1 is partition 0; null for a partition that the cut does not have.';

-- Runs with the rights of its owner: readers of the view may not read the table.
CREATE FUNCTION was_pending(generation_id bigint, board_id bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = public, pg_temp
AS $$ SELECT EXISTS (SELECT 1 FROM generation_excluded e
                      WHERE e.generation_id = $1 AND e.kind = 'pending' AND e.board_id = $2) $$;
COMMENT ON FUNCTION was_pending IS 'True if the board waited for its member when the generation was built.';

-- One expression, which the planner puts in the place of the call. was_pending is asked of few rows only.
CREATE FUNCTION is_covered(generation_id bigint, board_ends bigint[], member_ends bigint[], board_id bigint,
                           board_partition integer, board_offset bigint, member_partition integer,
                           member_offset bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN COALESCE(board_offset < board_ends[board_partition + 1], false)
       AND NOT (COALESCE(member_offset >= COALESCE(member_ends[member_partition + 1], 0), false)
                AND was_pending(generation_id, board_id));
COMMENT ON FUNCTION is_covered IS
    'True if the generation was built from the row''s record: the row is below its cut, and its board was not pending'
    ' there with a member that came later. False without a generation.';
"""

CUTS = """
ALTER TABLE generation
    ADD COLUMN board_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, 'board')) STORED,
    ADD COLUMN member_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, 'member')) STORED,
    ADD COLUMN first_key bigint,
    ADD COLUMN last_key bigint;
COMMENT ON COLUMN generation.board_ends IS 'The cut of topic board, by partition; element 1 is partition 0.';
COMMENT ON COLUMN generation.member_ends IS 'The cut of topic member, by partition; element 1 is partition 0.';
COMMENT ON COLUMN generation.first_key IS 'The smallest board id of its rows; null without rows.';
COMMENT ON COLUMN generation.last_key IS 'The greatest board id of its rows; null without rows.';
ALTER TABLE day_publication
    ADD COLUMN board_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, 'board')) STORED,
    ADD COLUMN member_ends bigint[] GENERATED ALWAYS AS (cut_ends(cut, 'member')) STORED;
COMMENT ON COLUMN day_publication.board_ends IS 'The cut of topic board, by partition; element 1 is partition 0.';
COMMENT ON COLUMN day_publication.member_ends IS 'The cut of topic member, by partition; element 1 is partition 0.';
CREATE INDEX generation_excluded_board ON generation_excluded (generation_id, board_id);
CREATE INDEX board_detail_covered_board ON board_detail_covered (board_id);
COMMENT ON TABLE board_detail_covered IS
    'Live rows that the published generation covers, moved out of the way of readers: an undo brings them back.';
"""

# The partition key begins with the day, so that a query of a day is planned with that day's generations only. Each
# table keeps its rows and its key: its CHECK says what its bounds say, so attaching it reads nothing.
FINAL = """
ALTER TABLE board_detail_final RENAME TO board_detail_final_by_generation;
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
) PARTITION BY RANGE (day, generation_id);
COMMENT ON TABLE board_detail_final IS
    'Batch layer: the rows of each rebuilt day, one partition a generation; those of a day are neighbours.';

DO $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT g.id, g.day, c.oid::regclass AS name, i.inhdetachpending AS is_pending
                  FROM pg_inherits i
                  JOIN pg_class c ON c.oid = i.inhrelid
                  JOIN generation g ON c.relname = 'board_detail_final_g' || g.id
                 WHERE i.inhparent = 'board_detail_final_by_generation'::regclass
    LOOP
        EXECUTE format('ALTER TABLE board_detail_final_by_generation DETACH PARTITION %%s%%s', part.name,
                       CASE WHEN part.is_pending THEN ' FINALIZE' ELSE '' END);
        CONTINUE WHEN part.is_pending;  -- it was given up; the next pruning drops it
        EXECUTE format('ALTER TABLE board_detail_final ATTACH PARTITION %%s FOR VALUES FROM (%%L, %%s) TO (%%L, %%s)',
                       part.name, part.day, part.id, part.day, part.id + 1);
        EXECUTE format('UPDATE generation SET first_key = (SELECT min(board_id) FROM %%1$s),'
                       ' last_key = (SELECT max(board_id) FROM %%1$s) WHERE id = %%2$s', part.name, part.id);
    END LOOP;
END
$$;
ALTER TABLE board_detail_final OWNER TO batch;
GRANT SELECT ON board_detail_final TO pipeline_owner, stream;
"""

# The day is compared three times. Between the days and the rows of one: so a generation is chosen while the query runs,
# and no other is read. As a column of the result: so a constant day reaches both branches when the query is planned,
# and no table of another day is opened or locked.
VIEWS = """
CREATE OR REPLACE VIEW board_detail AS
SELECT x.board_id, x.member_id, x.nickname, x.city, x.phone, x.title, x.body, x.modified_at, x.created_at, x.event_id,
       x.board_partition, x.board_offset, x.member_partition, x.member_offset, x.kafka_partition, x.kafka_offset,
       x.day, x.finality
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT f.board_id, f.member_id, f.nickname, f.city, f.phone, f.title, f.body, f.modified_at,
              f.created_at, f.event_id, f.board_partition, f.board_offset, f.member_partition,
              f.member_offset, f.kafka_partition, f.kafka_offset, f.day, 'final'::text AS finality
         FROM board_detail_final f
        WHERE f.day = p.day AND f.generation_id = p.generation_id
          AND NOT EXISTS (SELECT 1 FROM board_detail_live l
                           WHERE l.day = p.day AND l.board_id = f.board_id
                             AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id,
                                                l.board_partition, l.board_offset, l.member_partition,
                                                l.member_offset))
       UNION ALL
       SELECT l.board_id, l.member_id, l.nickname, l.city, l.phone, l.title, l.body, l.modified_at,
              l.created_at, l.event_id, l.board_partition, l.board_offset, l.member_partition,
              l.member_offset, l.kafka_partition, l.kafka_offset, l.day, 'live'::text AS finality
         FROM board_detail_live l
        WHERE l.day = p.day AND NOT l.deleted
          AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id, l.board_partition,
                             l.board_offset, l.member_partition, l.member_offset)) x
 WHERE x.day = p.day;
DROP TABLE board_detail_final_by_generation;

CREATE OR REPLACE VIEW day_status AS
SELECT p.day,
       p.status,
       p.raw_distinct,
       COALESCE(p.row_count, 0) AS row_count,
       COALESCE(p.pending_count, (SELECT count(*) FROM pending_board b WHERE b.day = p.day)) AS pending_count,
       COALESCE(p.rejected_count, 0) AS rejected_count,
       (SELECT count(*) FROM board_detail_correction c WHERE c.generation_id = p.generation_id) AS correction_count,
       (SELECT count(*) FROM board_detail_live l
         WHERE l.day = p.day AND NOT l.deleted
           AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id, l.board_partition,
                              l.board_offset, l.member_partition, l.member_offset)) AS live_row_count,
       (SELECT COALESCE(sum(d.count), 0)::bigint FROM dirty_day d WHERE d.day = p.day) AS dirty_count,
       p.generation_id,
       p.published_at,
       p.day + (SELECT s.value::integer FROM pipeline_setting s WHERE s.name = 'board_retention_days')
           AS rebuildable_until
  FROM day_publication p;
"""

# A generic plan of a prepared statement holds every partition and locks them all each time it runs.
PLANS = """
DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %%I SET plan_cache_mode = force_custom_plan', current_database());
END
$$;
"""


def upgrade() -> None:
    """Change the tables and views; rows stay where they are."""
    for block in (FUNCTIONS, CUTS, FINAL, VIEWS, PLANS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
