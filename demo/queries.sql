-- Queries that only the demo runs.

-- name: row
SELECT {{columns}}, day, finality, kafka_partition, kafka_offset FROM {{view}}_masked WHERE {{key}} = %(key)s

-- name: count
SELECT count(*) AS count
  FROM {{view}}_masked
 WHERE {{key}} >= %(first)s AND {{key}} < %(end)s AND (%(finality)s::text IS NULL OR finality = %(finality)s)

-- name: sample
SELECT {{columns}}, finality, kafka_partition, kafka_offset FROM {{view}}_masked WHERE day = %(day)s ORDER BY {{key}} DESC LIMIT %(limit)s

-- name: day_status
SELECT * FROM day_status WHERE day = %(day)s

-- name: corrections
SELECT c.key AS class, c.value::bigint AS count
  FROM day_trust t CROSS JOIN LATERAL jsonb_each_text(t.corrections) c
 WHERE t.day = %(day)s
 ORDER BY c.key

-- name: changed_authors
SELECT c.board_id, c.shown ->> 'nickname' AS shown, c.rebuilt ->> 'nickname' AS rebuilt
  FROM detail_correction c
  JOIN day_publication p ON p.generation_id = c.generation_id
 WHERE p.day = %(day)s AND c.class = 'member_version_changed' AND c.board_id = ANY (%(board_ids)s::bigint[])
 ORDER BY c.board_id

-- name: rejects
SELECT r.topic, r.partition, r."offset", r.reason
  FROM reject r
  JOIN unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) AS sent (topic, partition, "offset")
 USING (topic, partition, "offset")
 ORDER BY r.partition, r."offset"

-- name: pending
SELECT 1 AS found FROM pending_record WHERE {{key}} = %(key)s

-- name: pending_count
SELECT count(*) AS count FROM pending_record WHERE {{key}} >= %(first)s AND {{key}} < %(end)s

-- name: reject_count
SELECT count(*) AS count FROM reject

-- name: served_offsets
SELECT COALESCE(sum(next_offset), 0)::bigint AS count FROM offset_ledger WHERE consumer = 'serve'
