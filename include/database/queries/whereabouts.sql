-- Traces of a key in all tables, read in one snapshot: `begin_comparison`.

-- name: select_traces
-- Coordinates are those of the {{stream}} record, the {{table}} record and the {{output}} record.
SELECT 'live' AS place, l.day, NULL::bigint AS generation_id, l.event_id, l.written_at AS at, l.{{version}} AS version_at,
       l.stream_partition, l.stream_offset, l.table_partition, l.table_offset, l.kafka_partition, l.kafka_offset,
       CASE WHEN l.deleted THEN 'deleted' END AS note
  FROM detail_live l
 WHERE l.{{key}} = %(key)s
UNION ALL
SELECT 'covered', c.day, c.generation_id, c.event_id, c.covered_at, c.{{version}},
       c.stream_partition, c.stream_offset, c.table_partition, c.table_offset, c.kafka_partition, c.kafka_offset,
       CASE WHEN c.deleted THEN 'deleted' END
  FROM detail_covered c
 WHERE c.{{key}} = %(key)s
UNION ALL
SELECT 'pending', b.day, NULL, b.event_id, b.pending_since, b.version_at, b.partition, b."offset", NULL, NULL, NULL, NULL,
       format('its {{table}} %%s %%s', b.{{table_key}},
              CASE WHEN b.sent_at IS NULL THEN 'is not known, or was deleted' ELSE 'has arrived' END)
  FROM pending_record b
 WHERE b.{{key}} = %(key)s AND b.covered_by IS NULL
UNION ALL
SELECT e.kind, g.day, g.id, NULL, g.built_at, e.version_at, e.stream_partition, e.stream_offset, NULL, NULL, NULL, NULL,
       e.reason
  FROM generation_excluded e JOIN generation g ON g.id = e.generation_id
 WHERE e.{{key}} = %(key)s
   AND g.status IN ('built', 'published', 'superseded')
UNION ALL
SELECT 'reject', NULL, NULL, NULL, r.rejected_at, NULL,
       CASE WHEN r.topic = '{{stream}}' THEN r.partition END, CASE WHEN r.topic = '{{stream}}' THEN r."offset" END,
       NULL, NULL,
       CASE WHEN r.topic = '{{output}}' THEN r.partition END, CASE WHEN r.topic = '{{output}}' THEN r."offset" END,
       r.reason
  FROM reject r
 WHERE r.key = convert_to(%(key)s::text, 'UTF8') AND r.topic IN ('{{stream}}', '{{output}}')
UNION ALL
SELECT 'forgotten', NULL, NULL, NULL, f.last_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL, f.reason
  FROM forgotten_key f
 WHERE %(key)s = ANY (f.stream_keys)

-- name: select_generations_of_key
-- Kept generations whose keys lie around it.
SELECT id, day
  FROM generation
 WHERE %(key)s BETWEEN first_key AND last_key AND status IN ('built', 'published', 'superseded')
 ORDER BY day, id

-- name: select_final_trace
-- The generation is given as values, so that no table of another day is locked.
SELECT 'final', f.day, f.generation_id, f.event_id, g.built_at, f.{{version}}, f.stream_partition, f.stream_offset,
       f.table_partition, f.table_offset, f.kafka_partition, f.kafka_offset,
       CASE WHEN f.replayed THEN 'replayed from a fallback store' END
  FROM detail_final f JOIN generation g ON g.id = f.generation_id
 WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = %(key)s

-- name: select_shown_traces
-- The rows of the view, by place, day and generation; a row of the stream has no generation.
SELECT v.finality, v.day, CASE WHEN v.finality = 'final' THEN p.generation_id END
  FROM {{view}} v JOIN day_publication p ON p.day = v.day
 WHERE v.day = ANY (%(days)s::date[]) AND v.{{key}} = %(key)s

-- name: select_corrections_of_key
SELECT class, key, shown, rebuilt, changed
  FROM day_correction
 WHERE generation_id = ANY (%(generations)s::bigint[]) AND key = %(key)s
 ORDER BY generation_id, class

-- name: select_keys_of_event
-- Tables without an index of event ids are read whole; they hold the rows of a day or two.
SELECT {{key}} FROM detail_live WHERE event_id = %(event_id)s
UNION
SELECT {{key}} FROM pending_record WHERE event_id = %(event_id)s

-- name: select_days_to_search
-- The newest day first, or one day.
SELECT day, generation_id
  FROM day_publication
 WHERE generation_id IS NOT NULL AND (%(day)s::date IS NULL OR day = %(day)s)
 ORDER BY day DESC

-- name: select_final_keys_of_event
SELECT {{key}} FROM detail_final
 WHERE day = %(day)s AND generation_id = %(generation_id)s AND event_id = %(event_id)s
