-- A key of the table is forgotten, with the records of the stream that it is joined to.

-- name: forget_pending
-- Locked in the order in which the stream locks them.
WITH gone AS (
    SELECT topic, partition, "offset" FROM pending_record WHERE {{table_key}} = %(key)s
     ORDER BY topic, partition, "offset" FOR UPDATE
)
DELETE FROM pending_record p
 USING gone g
 WHERE p.topic = g.topic AND p.partition = g.partition AND p."offset" = g."offset"

-- name: forget_covered_of_key
DELETE FROM detail_covered WHERE {{table_key}} = %(key)s

-- name: forget_live
DELETE FROM detail_live WHERE {{table_key}} = %(key)s

-- name: forget_rejects
-- The record goes, the reason and the coordinates stay. A broken value is no JSON: it is searched as text.
UPDATE reject SET key = NULL, value = NULL
 WHERE (key IS NOT NULL OR value IS NOT NULL)
   AND CASE split_part(topic, '@', 1)
       WHEN '{{table}}' THEN encode(key, 'escape') = (%(key)s)::text OR encode(value, 'escape') ~ %(table_pattern)s
       ELSE encode(key, 'escape') = ANY (%(stream_keys)s::text[]) OR encode(value, 'escape') ~ %(join_pattern)s END

-- name: forget_corrections
-- The correction keeps its row and its class, without the values.
UPDATE detail_correction SET shown = NULL, rebuilt = NULL
 WHERE (shown IS NOT NULL OR rebuilt IS NOT NULL)
   AND ({{key}} = ANY (%(stream_keys)s)
        OR shown ->> '{{table_key}}' = (%(key)s)::text OR rebuilt ->> '{{table_key}}' = (%(key)s)::text)

-- name: open_forgotten
-- From this row on no rebuild shows the key. The records found by an earlier run stay known.
INSERT INTO forgotten_key AS f ({{table_key}}, reason, made_by, stream_keys)
VALUES (%(key)s, %(reason)s, %(made_by)s, %(stream_keys)s)
ON CONFLICT ({{table_key}}) DO UPDATE
   SET reason = excluded.reason, made_by = excluded.made_by, last_at = now(),
       stream_keys = ARRAY(SELECT DISTINCT unnest(f.stream_keys || excluded.stream_keys) ORDER BY 1)
RETURNING stream_keys

-- name: select_builds_under_way
SELECT id, day FROM generation WHERE status = 'building' ORDER BY id

-- name: forget_final
-- Locks the tables of all generations, any of which can have the key, against nobody but those who drop them.
DELETE FROM detail_final WHERE {{table_key}} = %(key)s RETURNING generation_id

-- name: lock_days_of_key
-- Of rows that are removed, and of builds whose counts change with them.
SELECT day
  FROM day_publication
 WHERE day IN (SELECT day FROM detail_live WHERE {{table_key}} = %(key)s
               UNION ALL SELECT day FROM detail_covered WHERE {{table_key}} = %(key)s
               UNION ALL SELECT day FROM generation WHERE id = ANY (%(generation_ids)s::bigint[]))
 ORDER BY day FOR UPDATE

-- name: recount_generation
UPDATE generation
   SET raw_distinct = raw_distinct - (row_count - %(row_count)s), row_count = %(row_count)s,
       content_hash = %(content_hash)s
 WHERE id = %(generation_id)s

-- name: recount_shown_day
-- A certificate counted the rows that are gone now: the day can be certified again.
UPDATE day_publication p
   SET raw_distinct = g.raw_distinct, row_count = g.row_count, content_hash = g.content_hash,
       status = CASE p.status WHEN 'certified' THEN 'rebuilt' ELSE p.status END, certified_at = NULL
  FROM generation g
 WHERE g.id = %(generation_id)s AND p.generation_id = g.id

-- name: save_forgotten
UPDATE forgotten_key SET removed = removed || %(removed)s::jsonb, last_at = now() WHERE {{table_key}} = %(key)s

-- name: select_keys_of_joined
SELECT {{key}} FROM detail_live WHERE {{table_key}} = %(key)s
 UNION SELECT {{key}} FROM detail_covered WHERE {{table_key}} = %(key)s
 UNION SELECT {{key}} FROM detail_final WHERE {{table_key}} = %(key)s
 UNION SELECT {{key}} FROM pending_record WHERE {{table_key}} = %(key)s

-- The site's own tables, which only the database of board_detail has.

-- name: select_board_documents
SELECT id FROM site.board_document WHERE document ->> 'memberId' = (%(key)s)::text

-- name: forget_member
DELETE FROM site.member WHERE id = %(key)s

-- name: forget_board_documents
DELETE FROM site.board_document WHERE document ->> 'memberId' = (%(key)s)::text

-- name: forget_change_keys
DELETE FROM site.change_key
 WHERE (topic = 'member' AND row_id = %(key)s)
    OR (topic = 'board' AND (row_id = ANY (%(stream_keys)s) OR value ->> 'memberId' = (%(key)s)::text))
