-- name: note_stores
-- In the order of the ids, so that two writers do not deadlock.
INSERT INTO gateway_store AS s (store_id, url, waiting, set_aside, lost, first_seen_at, seen_at)
SELECT store_id, url, waiting, set_aside, lost, now(), now()
  FROM unnest(%(store_ids)s::uuid[], %(urls)s::text[], %(waiting)s::bigint[], %(set_aside)s::bigint[],
              %(lost)s::bigint[]) AS a (store_id, url, waiting, set_aside, lost)
 ORDER BY store_id
ON CONFLICT (store_id) DO UPDATE
   SET url = excluded.url, waiting = excluded.waiting, set_aside = excluded.set_aside, lost = excluded.lost,
       seen_at = now(), given_up_at = NULL, given_up_by = NULL, reason = NULL

-- name: select_missing_stores
SELECT store_id, url, seen_at, waiting, set_aside, lost
  FROM gateway_store
 WHERE given_up_at IS NULL AND store_id <> ALL (%(answered)s::uuid[]) AND url <> ALL (%(silent)s::text[])
 ORDER BY seen_at, store_id

-- name: give_up_store
UPDATE gateway_store s
   SET given_up_at = now(), given_up_by = %(made_by)s, reason = %(reason)s
 WHERE store_id::text = %(store_id)s AND given_up_at IS NULL
RETURNING store_id, url, seen_at, waiting, set_aside, lost

-- name: term_missing_stores
SELECT count(*) FROM gateway_store WHERE given_up_at IS NULL AND store_id <> ALL (%(answered)s::uuid[])
