"""How fresh the view is, since when a row is shown, and how many rows a day shows."""

from alembic import op

revision = "0022"
down_revision = "0021"

MOVED = """
ALTER TABLE day_publication ADD COLUMN moved_at timestamptz;
UPDATE day_publication SET moved_at = published_at;
COMMENT ON COLUMN day_publication.moved_at IS 'When the day last began to show another generation, or none.';
"""

VIEWS = """
CREATE OR REPLACE VIEW board_detail AS
SELECT x.board_id, x.member_id, x.nickname, x.city, x.phone, x.title, x.body, x.modified_at, x.created_at, x.event_id,
       x.board_partition, x.board_offset, x.member_partition, x.member_offset, x.kafka_partition, x.kafka_offset,
       x.day, x.finality, x.shown_since
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT f.board_id, f.member_id, f.nickname, f.city, f.phone, f.title, f.body, f.modified_at,
              f.created_at, f.event_id, f.board_partition, f.board_offset, f.member_partition,
              f.member_offset, f.kafka_partition, f.kafka_offset, f.day, 'final'::text AS finality,
              p.moved_at AS shown_since
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
              l.member_offset, l.kafka_partition, l.kafka_offset, l.day, 'live'::text AS finality,
              GREATEST(l.written_at, p.moved_at) AS shown_since
         FROM board_detail_live l
        WHERE l.day = p.day AND NOT l.deleted
          AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id, l.board_partition,
                             l.board_offset, l.member_partition, l.member_offset)) x
 WHERE x.day = p.day;
COMMENT ON COLUMN board_detail.shown_since IS
    'Since when the row is shown as it is: when the stream wrote it, or its day began to show its generation, whichever'
    ' is later. Either transaction can commit up to two minutes after it.';

CREATE OR REPLACE VIEW board_detail_masked AS
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
       finality,
       shown_since
  FROM board_detail;
COMMENT ON COLUMN board_detail_masked.shown_since IS
    'Since when the row is shown as it is: when the stream wrote it, or its day began to show its generation, whichever'
    ' is later. Either transaction can commit up to two minutes after it.';

CREATE VIEW freshness AS
SELECT s.heartbeat_at,
       s.lag_records,
       s.lag_s,
       s.heartbeat_at - make_interval(secs => s.lag_s) AS shown_until,
       (SELECT max(updated_at) FROM offset_ledger WHERE consumer = 'serve') AS last_served_at,
       (SELECT value FROM pipeline_setting WHERE name = 'timezone') AS timezone
  FROM (SELECT min(heartbeat_at) AS heartbeat_at,
               CASE WHEN count(*) = count(lag_records) THEN sum(lag_records)::bigint END AS lag_records,
               CASE WHEN count(*) = count(lag_s) THEN sum(lag_s) END AS lag_s
          FROM stream_progress
         WHERE query IN ('join', 'serve')) s;
COMMENT ON VIEW freshness IS 'One row: how far the speed layer is. Boards that wait for their member are not in it.';
COMMENT ON COLUMN freshness.heartbeat_at IS 'When the speed layer last said that it is alive; it does every second.';
COMMENT ON COLUMN freshness.lag_records IS 'Records in Kafka that it has not taken, when it said so.';
COMMENT ON COLUMN freshness.lag_s IS 'How long the first of them has waited, in seconds, at most; null when not known.';
COMMENT ON COLUMN freshness.shown_until IS 'What reached Kafka before this is shown; null when not known.';
COMMENT ON COLUMN freshness.last_served_at IS 'When it last wrote rows.';
COMMENT ON COLUMN freshness.timezone IS 'The time zone of column day.';
GRANT SELECT ON freshness TO analyst, analyst_personal, batch;
"""

# A view that counted the generation's rows would open the tables of all days; a custom plan opens those of one. A day
# with nothing on top opens none, so that the status of all days takes few locks.
SHOWN_ROWS = """
CREATE FUNCTION shown_rows(of_day date) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    p day_publication;
    on_top bigint[];
    alive bigint;
    replaced bigint := 0;
BEGIN
    SELECT * INTO p FROM day_publication WHERE day = of_day;
    SELECT array_agg(l.board_id) FILTER (WHERE p.generation_id IS NOT NULL), count(*) FILTER (WHERE NOT l.deleted)
      INTO on_top, alive
      FROM board_detail_live l
     WHERE l.day = of_day
       AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.board_id, l.board_partition, l.board_offset,
                          l.member_partition, l.member_offset);
    IF on_top IS NOT NULL THEN
        SELECT count(*) INTO replaced
          FROM board_detail_final f
         WHERE f.day = of_day AND f.generation_id = p.generation_id AND f.board_id = ANY (on_top);
    END IF;
    RETURN CASE WHEN p.day IS NOT NULL THEN COALESCE(p.row_count, 0) - replaced + alive END;
END
$$;
COMMENT ON FUNCTION shown_rows IS 'How many rows of the day board_detail shows; null for a day that it does not have.';
REVOKE EXECUTE ON FUNCTION shown_rows FROM PUBLIC;
GRANT EXECUTE ON FUNCTION shown_rows TO analyst, analyst_personal, batch;

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
           AS rebuildable_until,
       shown_rows(p.day) AS shown_rows
  FROM day_publication p;
COMMENT ON COLUMN day_status.shown_rows IS
    'Rows of the day that board_detail shows: row_count and live_row_count, an edited board counted once.';
"""


def upgrade() -> None:
    """Add the column, the function and the views."""
    for block in (MOVED, VIEWS, SHOWN_ROWS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
