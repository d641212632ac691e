-- Rows that were made from records which the contract rejects by now: it was narrowed since.

-- name: create_rejected_record
CREATE TEMPORARY TABLE rejected_record (
    topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (topic, partition, "offset")
) ON COMMIT DROP

-- name: insert_rejected_record
INSERT INTO rejected_record (topic, topic_id, partition, "offset") VALUES %s ON CONFLICT DO NOTHING

-- name: select_made_of_rejected
-- Rows of the speed layer. One whose {{table}} record is rejected is made again; only a live one is, since another one is
-- not shown.
SELECT 'live' AS place, l.day, l.{{key}}, l.{{version}}, r.topic, r.partition, r."offset"
  FROM detail_live l
 CROSS JOIN LATERAL (VALUES ('{{stream}}', l.stream_partition, l.stream_offset),
                            ('{{table}}', l.table_partition, l.table_offset)) made (topic, partition, "offset")
  JOIN rejected_record r ON (r.topic, r.partition, r."offset") = (made.topic, made.partition, made."offset")
 UNION ALL
SELECT 'covered', c.day, c.{{key}}, c.{{version}}, r.topic, r.partition, r."offset"
  FROM detail_covered c
  JOIN rejected_record r
    ON (r.topic, r.partition, r."offset") = ('{{stream}}', c.stream_partition, c.stream_offset)
 UNION ALL
SELECT 'pending', p.day, p.{{key}}, p.version_at, r.topic, r.partition, r."offset"
  FROM pending_record p
  JOIN rejected_record r ON (r.topic, r.partition, r."offset") = (p.topic, p.partition, p."offset")
 ORDER BY 1, 3

-- name: select_days_shown
SELECT p.day, p.generation_id FROM day_publication p WHERE p.generation_id IS NOT NULL ORDER BY p.day

-- name: select_shown_of_rejected
-- Of a published day: rows, and {{stream}}s that are left out because of a rejected record. Offsets of a topic that was
-- replaced since name other records.
SELECT made.place, p.day, made.key, made.version_at, r.topic, r.partition, r."offset"
  FROM day_publication p
 CROSS JOIN LATERAL (
       SELECT 'final' AS place, f.{{key}} AS key, f.{{version}} AS version_at, source.*
         FROM detail_final f
        CROSS JOIN LATERAL (VALUES ('{{stream}}', f.stream_partition, f.stream_offset),
                                   ('{{table}}', f.table_partition, f.table_offset)) source (topic, partition, "offset")
        WHERE f.day = date '1970-01-01' + %(day_number)s AND f.generation_id = %(generation_id)s
        UNION ALL
       SELECT e.kind, e.{{key}}, e.version_at, '{{stream}}', e.stream_partition, e.stream_offset
         FROM generation_excluded e
        WHERE e.generation_id = %(generation_id)s AND e.kind <> 'rejected') made
  JOIN rejected_record r ON (r.topic, r.partition, r."offset") = (made.topic, made.partition, made."offset")
 WHERE p.day = date '1970-01-01' + %(day_number)s
   AND COALESCE(p.cut -> 'topic_ids' ->> r.topic, r.topic_id) = r.topic_id
 ORDER BY made.key

-- name: lock_days_of_rejected
SELECT day, generation_id IS NOT NULL
  FROM day_publication
 WHERE day = ANY (%(days)s::date[])
 ORDER BY day FOR UPDATE

-- name: delete_pending_of_rejected
-- Locked in the order in which the stream locks them.
WITH gone AS (
    SELECT p.topic, p.partition, p."offset"
      FROM pending_record p
      JOIN rejected_record r ON (r.topic, r.partition, r."offset") = (p.topic, p.partition, p."offset")
     ORDER BY p.topic, p.partition, p."offset" FOR UPDATE OF p
)
DELETE FROM pending_record p
 USING gone g
 WHERE p.topic = g.topic AND p.partition = g.partition AND p."offset" = g."offset"

-- name: delete_covered_of_rejected
DELETE FROM detail_covered c
 USING rejected_record r
 WHERE (r.topic, r.partition, r."offset") = ('{{stream}}', c.stream_partition, c.stream_offset)

-- name: delete_live_of_rejected
DELETE FROM detail_live l
 USING rejected_record r
 WHERE (r.topic, r.partition, r."offset") = ('{{stream}}', l.stream_partition, l.stream_offset)
    OR (r.topic, r.partition, r."offset") = ('{{table}}', l.table_partition, l.table_offset)

-- name: delete_late_of_rejected
-- A version of the {{table}} that no row takes concerns no day.
DELETE FROM late_version v
 USING rejected_record r
 WHERE r.topic = '{{table}}' AND (r.topic_id, r.partition, r."offset") = (v.topic_id, v.partition, v."offset")
