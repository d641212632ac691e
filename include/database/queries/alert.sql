-- Alerts: what is open, and what of it was sent.

-- name: lock_alerts
-- One watch at a time records its findings: two would lock the rows in different orders.
SELECT pg_advisory_xact_lock(7203006, 0)

-- name: record_findings
-- Opens an alert for each finding that has none, keeps those that are found again, and closes those of the checked names
-- that are not. Every open or closed one gets a notice for each channel, once.
WITH found AS (
    SELECT name, subject, severity, message, runbook, since
      FROM jsonb_to_recordset(%(found)s) AS f (name text, subject text, severity text, message text, runbook text,
                                               since timestamptz)
), opened AS (
    INSERT INTO alert AS a (name, subject, severity, message, runbook, since)
    SELECT name, subject, severity, message, runbook, COALESCE(since, now()) FROM found
    ON CONFLICT (name, subject) WHERE closed_at IS NULL
    DO UPDATE SET severity = excluded.severity, message = excluded.message, runbook = excluded.runbook,
                  last_seen_at = now()
    RETURNING a.id
), closed AS (
    UPDATE alert a SET closed_at = now()
     WHERE a.closed_at IS NULL AND a.name = ANY (%(checked)s)
       AND NOT EXISTS (SELECT FROM found f WHERE (f.name, f.subject) = (a.name, a.subject))
    RETURNING a.id
)
INSERT INTO alert_notice (alert_id, event, channel)
SELECT noted.id, noted.event, channel
  FROM (SELECT id, 'opened' AS event FROM opened UNION ALL SELECT id, 'closed' FROM closed) noted
 CROSS JOIN unnest(%(channels)s::text[]) AS channel
ON CONFLICT DO NOTHING

-- name: forget_alerts
DELETE FROM alert WHERE closed_at < now() - make_interval(days => %(days)s)

-- name: take_notice
-- The next one that the channel has not taken, locked until the transaction ends: nobody else sends it meanwhile. Those
-- that failed come last, so that one that the channel refuses holds up no other. The end of an alert waits for its begin.
SELECT n.alert_id, n.event, a.name, a.subject, a.severity, a.message, a.runbook, a.since, a.closed_at
  FROM alert_notice n JOIN alert a ON a.id = n.alert_id
 WHERE n.channel = %(channel)s AND n.sent_at IS NULL AND NOT n.alert_id = ANY (%(failed)s)
   AND (n.event = 'opened'
        OR NOT EXISTS (SELECT FROM alert_notice first
                        WHERE (first.alert_id, first.channel, first.event) = (n.alert_id, n.channel, 'opened')
                          AND first.sent_at IS NULL))
 ORDER BY n.tries, n.alert_id, n.event DESC
 LIMIT 1
   FOR UPDATE OF n SKIP LOCKED

-- name: mark_notice_sent
UPDATE alert_notice SET sent_at = now() WHERE (alert_id, event, channel) = (%(alert_id)s, %(event)s, %(channel)s)

-- name: count_failed_notice
UPDATE alert_notice SET tries = tries + 1 WHERE (alert_id, event, channel) = (%(alert_id)s, %(event)s, %(channel)s)

-- name: select_open_alerts
-- The critical ones first, then the oldest.
SELECT name, severity, message, runbook, subject, since
  FROM alert
 WHERE closed_at IS NULL
 ORDER BY severity <> 'critical', since

-- name: select_alerted_subjects
SELECT subject FROM alert WHERE name = %(name)s AND closed_at IS NULL

-- name: select_watched_days
-- Days from `oldest` on, and older ones that a person holds or has to look at: the pointer, and since when it is held.
SELECT p.day, p.status, p.generation_id IS NOT NULL AS is_published,
       EXISTS (SELECT FROM dirty_day d WHERE d.day = p.day) AS is_dirty,
       g.uncertified_reason,
       p.held_reason IS NOT NULL AS is_held,
       CASE WHEN p.held_reason IS NOT NULL
            THEN (SELECT max(made_at) FROM publication u WHERE u.day = p.day) END AS held_since,
       EXISTS (SELECT FROM day_acknowledgement k WHERE k.day = p.day) AS is_acknowledged
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id
 WHERE p.day <= %(newest)s
   AND (p.day >= %(oldest)s OR p.held_reason IS NOT NULL OR p.status <> 'certified'
        OR EXISTS (SELECT FROM dirty_day d WHERE d.day = p.day))
 ORDER BY p.day

-- name: count_rejects
SELECT count(*), min(rejected_at) FROM reject WHERE rejected_at >= %(since)s

-- name: count_open_alerts
SELECT name, severity, count(*) FROM alert WHERE closed_at IS NULL GROUP BY name, severity
