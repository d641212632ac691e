"""Freshness by watermarks: through both queries, and across restarts. Lags said that rows were shown that were not."""

from alembic import op

revision = "0046"
down_revision = "0045"

WATERMARKS = """
ALTER TABLE stream_progress ADD COLUMN watermark timestamptz;
COMMENT ON COLUMN stream_progress.watermark IS
    'What reached the topic before this is taken, its results are written; null when not known. It outlives drivers.';
CREATE TABLE stream_watermark (
    at timestamptz NOT NULL,
    watermark timestamptz NOT NULL,
    PRIMARY KEY (at)
) WITH (vacuum_truncate = off, toast.vacuum_truncate = off);
GRANT SELECT, INSERT, DELETE ON stream_watermark TO stream;
COMMENT ON TABLE stream_watermark IS
    'Watermarks of query join in the past six hours: the older, the fewer. What is served then follows from it.';
CREATE OR REPLACE VIEW freshness AS
SELECT s.heartbeat_at,
       s.lag_records,
       extract(epoch FROM s.heartbeat_at - w.shown_until)::double precision AS lag_s,
       w.shown_until,
       (SELECT max(updated_at) FROM offset_ledger WHERE consumer = 'serve') AS last_served_at,
       (SELECT value FROM pipeline_setting WHERE name = 'timezone') AS timezone,
       COALESCE(s.query_count = 2 AND s.heartbeat_at > now() - interval '10 seconds', false) AS is_alive
  FROM (SELECT count(*) AS query_count,
               min(heartbeat_at) AS heartbeat_at,
               CASE WHEN count(*) = count(lag_records) THEN sum(lag_records)::bigint END AS lag_records,
               max(watermark) FILTER (WHERE query = 'serve') AS served_until
          FROM stream_progress
         WHERE query IN ('join', 'serve')) s
 CROSS JOIN LATERAL (SELECT max(j.watermark) AS shown_until FROM stream_watermark j WHERE j.at <= s.served_until) w;
COMMENT ON COLUMN freshness.lag_s IS
    'How much older shown_until is than the heartbeat, in seconds: a few while nothing waits; null when not known.';
COMMENT ON COLUMN freshness.shown_until IS
    'What reached Kafka before this is shown; null when not known: before the stream first caught up, and when its'
    ' query serve is more than six hours behind.';
COMMENT ON FUNCTION is_fresh IS
    'True if everything is shown that reached Kafka more than max_age before the transaction began. A stream that has'
    ' nothing to do is some seconds behind its own heartbeat. False when it is not known.';
"""


def upgrade() -> None:
    """Add watermarks, and replace the view."""
    op.execute(WATERMARKS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
