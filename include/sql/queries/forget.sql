-- A member and their boards are forgotten.

-- name: forget_pending
-- Locked in the order in which the stream locks them.
WITH gone AS (
    SELECT topic, partition, "offset" FROM pending_record WHERE {{table_key}} = %(member_id)s
     ORDER BY topic, partition, "offset" FOR UPDATE
)
DELETE FROM pending_record p
 USING gone g
 WHERE p.topic = g.topic AND p.partition = g.partition AND p."offset" = g."offset"

-- name: forget_covered_of_member
DELETE FROM detail_covered WHERE {{table_key}} = %(member_id)s

-- name: forget_live
DELETE FROM detail_live WHERE {{table_key}} = %(member_id)s

-- name: forget_rejects
-- The record goes, the reason and the coordinates stay. A broken value is no JSON: it is searched as text.
UPDATE reject SET key = NULL, value = NULL
 WHERE (key IS NOT NULL OR value IS NOT NULL)
   AND ((split_part(topic, '@', 1) = %(member_topic)s
         AND (encode(key, 'escape') = %(member_id)s::text
              OR encode(value, 'escape') ~ ('"id"\s*:\s*"?' || %(member_id)s || '([^0-9]|$)')))
        OR (split_part(topic, '@', 1) <> %(member_topic)s
            AND (encode(key, 'escape') = ANY (%(board_ids)s::text[])
                 OR encode(value, 'escape') ~ ('"memberId"\s*:\s*"?' || %(member_id)s || '([^0-9]|$)'))))

-- name: forget_corrections
-- The correction keeps its row and its class, without the values.
UPDATE detail_correction SET shown = NULL, rebuilt = NULL
 WHERE (shown IS NOT NULL OR rebuilt IS NOT NULL)
   AND ({{key}} = ANY (%(board_ids)s)
        OR shown ->> '{{table_key}}' = %(member_id)s::text OR rebuilt ->> '{{table_key}}' = %(member_id)s::text)

-- name: forget_member_row
DELETE FROM site.member WHERE id = %(member_id)s

-- name: forget_board_documents
DELETE FROM site.board_document WHERE document ->> 'memberId' = %(member_id)s::text

-- name: forget_change_keys
DELETE FROM site.change_key
 WHERE (topic = %(member_topic)s AND row_id = %(member_id)s)
    OR (topic = %(board_topic)s AND (row_id = ANY (%(board_ids)s) OR value ->> 'memberId' = %(member_id)s::text))

-- name: open_forgotten
-- From this row on no rebuild shows the member. The boards found by an earlier run stay known.
INSERT INTO forgotten_key AS f ({{table_key}}, reason, made_by, stream_keys)
VALUES (%(member_id)s, %(reason)s, %(made_by)s, %(board_ids)s)
ON CONFLICT ({{table_key}}) DO UPDATE
   SET reason = excluded.reason, made_by = excluded.made_by, last_at = now(),
       stream_keys = ARRAY(SELECT DISTINCT unnest(f.stream_keys || excluded.stream_keys) ORDER BY 1)
RETURNING stream_keys

-- name: select_builds_under_way
SELECT id, day FROM generation WHERE status = 'building' ORDER BY id

-- name: forget_final
DELETE FROM detail_final WHERE {{table_key}} = %(member_id)s RETURNING generation_id

-- name: lock_days_of_member
-- Of rows that are removed, and of builds whose counts change with them.
SELECT day
  FROM day_publication
 WHERE day IN (SELECT day FROM detail_live WHERE {{table_key}} = %(member_id)s
               UNION ALL SELECT day FROM detail_covered WHERE {{table_key}} = %(member_id)s
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
UPDATE forgotten_key SET removed = removed || %(removed)s::jsonb, last_at = now() WHERE {{table_key}} = %(member_id)s

-- name: select_boards_of_member
SELECT DISTINCT {{key}} FROM (
    SELECT id AS {{key}} FROM site.board_document WHERE document ->> 'memberId' = %(member_id)s::text
    UNION ALL SELECT {{key}} FROM detail_live WHERE {{table_key}} = %(member_id)s
    UNION ALL SELECT {{key}} FROM detail_covered WHERE {{table_key}} = %(member_id)s
    UNION ALL SELECT {{key}} FROM detail_final WHERE {{table_key}} = %(member_id)s
    UNION ALL SELECT {{key}} FROM pending_record WHERE {{table_key}} = %(member_id)s) boards
 ORDER BY {{key}}
