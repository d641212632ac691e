-- The certificate of a day: the terms of its balance, one statement each.

-- name: term_recorded
SELECT count(*) FROM recorded WHERE recorded_at >= %(start)s AND recorded_at < %(end)s

-- name: term_raw_distinct
SELECT raw_distinct FROM generation WHERE id = %(generation_id)s

-- name: term_rows
SELECT count(*) FROM detail_final WHERE day = %(day)s AND generation_id = %(generation_id)s

-- name: term_pending
SELECT count(*) FROM generation_excluded WHERE generation_id = %(generation_id)s AND kind = 'pending'

-- name: term_rejected
SELECT count(*) FROM generation_excluded WHERE generation_id = %(generation_id)s AND kind = 'rejected'

-- name: term_deleted
SELECT count(*) FROM generation_excluded WHERE generation_id = %(generation_id)s AND kind = 'deleted'

-- name: term_moved
SELECT count(*) FROM generation_excluded WHERE generation_id = %(generation_id)s AND kind = 'moved'

-- name: term_duplicates
SELECT COALESCE(sum((rebuilt ->> 'copies')::bigint - 1), 0) FROM detail_correction
 WHERE generation_id = %(generation_id)s AND class = 'duplicate'

-- name: term_misplaced
SELECT COALESCE(misplaced_count, 0) FROM generation WHERE id = %(generation_id)s

-- name: term_corrections
SELECT (SELECT count(*) FROM detail_correction c WHERE c.generation_id = g.id)
     + (SELECT COALESCE(sum(value::bigint), 0) FROM jsonb_each_text(g.unlisted_corrections))
  FROM generation g WHERE g.id = %(generation_id)s

-- name: term_unaccounted
-- Keys of the day that the system of record has, or that the stream made rows of, and of which the generation says
-- nothing: neither a row, nor pending, rejected, deleted or moved. What came since shows them neither.
WITH known AS (
    SELECT {{key}} FROM recorded WHERE recorded_at >= %(start)s AND recorded_at < %(end)s
     UNION
    SELECT {{key}} FROM detail_covered WHERE day = %(day)s AND NOT deleted
     UNION
    SELECT {{key}} FROM detail_live WHERE day = %(day)s AND NOT deleted
), unsaid AS MATERIALIZED (
    SELECT k.{{key}}
      FROM known k
     WHERE NOT EXISTS (SELECT FROM detail_final f
                        WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = k.{{key}})
       AND NOT EXISTS (SELECT FROM generation_excluded e
                        WHERE e.generation_id = %(generation_id)s AND e.{{key}} = k.{{key}})
)
SELECT count(*)
  FROM unsaid u
 WHERE NOT EXISTS (SELECT FROM pending_record w WHERE w.{{key}} = u.{{key}} AND w.covered_by IS NULL)
   AND NOT EXISTS (SELECT FROM detail_live l LEFT JOIN day_publication p ON p.day = l.day
                    WHERE l.{{key}} = u.{{key}}
                      AND NOT is_covered(p.generation_id, p.stream_ends, p.table_ends, l.{{key}}, l.stream_partition,
                                         l.stream_offset, l.table_partition, l.table_offset))

-- name: term_unexplained
SELECT count(*) FROM detail_correction
 WHERE generation_id = %(generation_id)s AND class = 'unexplained'

-- name: term_dirty
SELECT COALESCE(sum(count), 0) FROM dirty_day WHERE day = %(day)s AND cause <> 'unread {{stream}}'

-- name: term_unread
SELECT COALESCE(sum(count), 0) FROM dirty_day WHERE day = %(day)s AND cause = 'unread {{stream}}'

-- name: term_unchecked
SELECT count(*) FROM unchecked_day WHERE day = %(day)s

-- name: term_unrecovered
-- The present timeline is noted by every session that writes; a session that was opened before a promotion is not.
SELECT count(*) FROM database_timeline WHERE reconciled_at IS NULL

-- name: select_balance
-- Of what the day shows: the generation, and what its build found.
SELECT p.generation_id, g.row_count, g.content_hash, g.hashed_columns
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id
 WHERE p.day = %(day)s

-- name: save_hash
UPDATE generation SET content_hash = %(content_hash)s WHERE id = %(generation_id)s;
UPDATE day_publication SET content_hash = %(content_hash)s WHERE generation_id = %(generation_id)s

-- name: term_accepted
SELECT sum(value::bigint) FROM day_certificate
 WHERE generation_id = %(generation_id)s AND term IN ('raw_distinct', 'fallback_pending')

-- name: delete_certificate
DELETE FROM day_certificate WHERE generation_id = %(generation_id)s

-- name: insert_certificate
INSERT INTO day_certificate (day, generation_id, term, position, value, query, note) VALUES %s

-- name: save_objection
UPDATE generation SET uncertified_reason = %(reason)s WHERE id = %(generation_id)s

-- name: certify_day
UPDATE day_publication
   SET status = CASE WHEN %(is_certified)s THEN 'certified' ELSE 'rebuilt' END,
       certified_at = CASE WHEN %(is_certified)s THEN now() END
 WHERE day = %(day)s AND generation_id = %(generation_id)s
