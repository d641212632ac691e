"""A sentence per day in day_trust, whether the stream is alive in freshness, and function is_fresh."""

from alembic import op

revision = "0042"
down_revision = "0041"

TRUST = r"""
CREATE OR REPLACE VIEW day_trust AS
SELECT d.day,
       d.held_reason,
       d.uncertified_reason,
       d.certified_at,
       d.corrections,
       d.dirty,
       d.duplicate_count,
       concat_ws('; ',
           'held: undone' || CASE WHEN d.undone_by <> 'not said' THEN ' by ' || d.undone_by ELSE '' END
               || ', ' || d.held_reason,
           CASE WHEN d.generation_id IS NULL THEN 'provisional: the stream''s rows, not rebuilt yet'
                ELSE CASE WHEN d.status = 'certified' THEN 'certified'
                          ELSE COALESCE('rebuilt, not certified (' || d.uncertified_reason || ')',
                                        'rebuilt, not certified yet') END
                     || ': ' || to_char(d.row_count, 'FM999,999,999,990')
                     || CASE WHEN d.row_count = 1 THEN ' row, ' ELSE ' rows, ' END
                     || (SELECT to_char(COALESCE(sum(c.count::bigint), 0), 'FM999,999,999,990')
                                || CASE WHEN sum(c.count::bigint) = 1 THEN ' correction' ELSE ' corrections' END
                           FROM jsonb_each_text(d.corrections) c (class, count))
                     || to_char(d.published_at AT TIME ZONE COALESCE(z.value, 'UTC'),
                                ', "published" YYYY-MM-DD HH24\:MI') END,
           (SELECT to_char(sum(c.count::bigint), 'FM999,999,999,990')
                   || CASE WHEN sum(c.count::bigint) = 1 THEN ' record' ELSE ' records' END || ' arrived since ('
                   || string_agg(c.count || ' ' || c.cause, ', ' ORDER BY c.cause)
                   || '): the day waits for its next rebuild'
              FROM jsonb_each_text(d.dirty) c (cause, count) WHERE c.cause NOT LIKE 'unread %'),
           (SELECT to_char(sum(c.count::bigint), 'FM999,999,999,990')
                   || CASE WHEN sum(c.count::bigint) = 1 THEN ' row' ELSE ' rows' END
                   || ' of the stream that no rebuild can read any more'
              FROM jsonb_each_text(d.dirty) c (cause, count) WHERE c.cause LIKE 'unread %'),
           CASE WHEN d.is_unchecked THEN 'a check for late records is due' END) AS summary
  FROM (SELECT p.day,
               p.status,
               p.generation_id,
               p.row_count,
               p.published_at,
               p.held_reason,
               (SELECT u.made_by FROM publication u
                 WHERE u.day = p.day AND u.action = 'undo' ORDER BY u.id DESC LIMIT 1) AS undone_by,
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
               g.duplicate_count,
               EXISTS (SELECT FROM unchecked_day u WHERE u.day = p.day) AS is_unchecked
          FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id) d
  LEFT JOIN pipeline_setting z ON z.name = 'timezone';
COMMENT ON COLUMN day_trust.summary IS
    'One sentence: whether the day can be trusted, and why. Times are in the pipeline''s time zone.';
"""

FRESHNESS = r"""
CREATE OR REPLACE VIEW freshness AS
SELECT s.heartbeat_at,
       s.lag_records,
       s.lag_s,
       s.heartbeat_at - make_interval(secs => s.lag_s) AS shown_until,
       (SELECT max(updated_at) FROM offset_ledger WHERE consumer = 'serve') AS last_served_at,
       (SELECT value FROM pipeline_setting WHERE name = 'timezone') AS timezone,
       COALESCE(s.query_count = 2 AND s.heartbeat_at > now() - interval '10 seconds', false) AS is_alive
  FROM (SELECT count(*) AS query_count,
               min(heartbeat_at) AS heartbeat_at,
               CASE WHEN count(*) = count(lag_records) THEN sum(lag_records)::bigint END AS lag_records,
               CASE WHEN count(*) = count(lag_s) THEN sum(lag_s) END AS lag_s
          FROM stream_progress
         WHERE query IN ('join', 'serve')) s;
COMMENT ON COLUMN freshness.is_alive IS
    'True if the speed layer said so in the ten seconds before the transaction began.';

CREATE FUNCTION is_fresh(max_age interval) RETURNS boolean
LANGUAGE sql STABLE
RETURN (SELECT COALESCE(f.shown_until >= now() - max_age, false) FROM freshness f);
COMMENT ON FUNCTION is_fresh IS
    'True if everything is shown that reached Kafka more than max_age before the transaction began: the lag and the'
    ' time since the last heartbeat are at most max_age together. False when the lag is not known.';
REVOKE EXECUTE ON FUNCTION is_fresh FROM PUBLIC;
GRANT EXECUTE ON FUNCTION is_fresh TO batch, analyst, analyst_personal;
"""

# the view opens them: VACUUM must not shorten them, see 0030
TABLES = """
ALTER TABLE publication SET (vacuum_truncate = off, toast.vacuum_truncate = off);
ALTER TABLE unchecked_day SET (vacuum_truncate = off, toast.vacuum_truncate = off);
"""


def upgrade() -> None:
    """Set the tables, replace the views, and make the function."""
    op.execute(TABLES)
    op.execute(TRUST)
    op.execute(FRESHNESS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
