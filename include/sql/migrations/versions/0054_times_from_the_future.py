"""Times that were written while the server's clock was ahead: no sign of life, not fresh, and no young timeline."""

from alembic import op

revision = "0054"
down_revision = "0053"

STATEMENTS = """
GRANT UPDATE (first_seen_at) ON database_timeline TO gateway;
GRANT SELECT ON alembic_version TO gateway;

CREATE FUNCTION heartbeat_age_s(heartbeat_at timestamptz, present timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN abs(extract(epoch FROM present - heartbeat_at))::double precision;
COMMENT ON FUNCTION heartbeat_age_s IS
    'Seconds since a heartbeat. One from the future was written while the server''s clock was ahead: it is no sign of'
    ' life, since a driver that is alive replaces it within a second.';

CREATE OR REPLACE VIEW freshness AS
SELECT s.heartbeat_at,
       s.lag_records,
       extract(epoch FROM s.heartbeat_at - w.shown_until)::double precision AS lag_s,
       w.shown_until,
       (SELECT max(updated_at) FROM offset_ledger WHERE consumer = 'serve') AS last_served_at,
       (SELECT value FROM pipeline_setting WHERE name = 'timezone') AS timezone,
       COALESCE(s.query_count = 2 AND heartbeat_age_s(s.heartbeat_at, now()) < 10, false) AS is_alive
  FROM (SELECT count(*) AS query_count,
               min(heartbeat_at) AS heartbeat_at,
               CASE WHEN count(*) = count(lag_records) THEN sum(lag_records)::bigint END AS lag_records,
               max(watermark) FILTER (WHERE query = 'serve') AS served_until
          FROM stream_progress
         WHERE query IN ('join', 'serve')) s
 CROSS JOIN LATERAL (SELECT max(j.watermark) AS shown_until
                       FROM stream_watermark j WHERE j.at <= s.served_until AND j.watermark <= now()) w;
"""


def upgrade() -> None:
    """Create the function, and replace the view."""
    op.execute(STATEMENTS)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
