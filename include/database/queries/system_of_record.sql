-- Members and boards of the site, the keys of their changes, and versions that never reached Kafka.

-- name: insert_member
INSERT INTO site.member (nickname, city, phone, email, created_at, modified_at)
SELECT %(nickname)s, %(city)s, %(phone)s, %(email)s, made.at, made.at
FROM (SELECT date_trunc('milliseconds', clock_timestamp()) AS at) AS made
RETURNING id, nickname, city, phone, email, created_at, modified_at

-- name: update_member
-- a version is always newer than the one before, also when the clock went back or two changes share a millisecond
UPDATE site.member
SET nickname = %(nickname)s, city = %(city)s, phone = %(phone)s, email = %(email)s,
    modified_at = greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond')
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING id, nickname, city, phone, email, created_at, modified_at

-- name: delete_member
UPDATE site.member
SET deleted_at = clock_timestamp(),
    modified_at = greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond')
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING id, modified_at

-- name: insert_board_document
WITH made AS (
    SELECT nextval('site.board_id_seq') AS id, date_trunc('milliseconds', clock_timestamp()) AS at
), stamped AS (
    SELECT id, at, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS text FROM made
)
INSERT INTO site.board_document (id, document, modified_at)
SELECT id, %(fields)s::jsonb || jsonb_build_object('id', id, 'createdAt', text, 'modifiedAt', text), at
FROM stamped
RETURNING id, document, modified_at

-- name: update_board_document
-- the document's own modifiedAt and the column are one instant, newer than the one before
WITH held AS (
    SELECT id, document -> 'createdAt' AS created,
        greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond') AS at
    FROM site.board_document
    WHERE id = %(id)s AND deleted_at IS NULL
    FOR UPDATE
)
UPDATE site.board_document AS board
SET modified_at = held.at,
    document = %(fields)s::jsonb || jsonb_build_object(
        'id', held.id, 'createdAt', held.created,
        'modifiedAt', to_char(held.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
FROM held
WHERE board.id = held.id
RETURNING board.id, board.document, board.modified_at

-- name: delete_board_document
UPDATE site.board_document
SET deleted_at = clock_timestamp(),
    modified_at = greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond')
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING id, modified_at

-- name: claim_change_key
-- A row when the key is new, or older than the window; none when it is in use. Another transaction that claimed the same
-- key is waited for: after its rollback the key is new again.
INSERT INTO site.change_key AS known (scope, key, fingerprint, topic, made_at)
VALUES (%(scope)s, %(key)s, %(fingerprint)s, %(topic)s, clock_timestamp())
ON CONFLICT (scope, key) DO UPDATE
   SET fingerprint = excluded.fingerprint, topic = excluded.topic, made_at = excluded.made_at,
       row_id = NULL, created_at = NULL, modified_at = NULL, value = NULL
 WHERE known.made_at < clock_timestamp() - make_interval(secs => %(window_s)s)
RETURNING scope

-- name: select_change_key
SELECT fingerprint, row_id, created_at, modified_at, value
FROM site.change_key
WHERE scope = %(scope)s AND key = %(key)s

-- name: delete_expired_change_keys
-- a small batch at a time; what another gateway deletes at the moment is left to it
DELETE FROM site.change_key
WHERE (scope, key) IN (
    SELECT scope, key FROM site.change_key
    WHERE made_at < clock_timestamp() - make_interval(secs => %(window_s)s)
    ORDER BY made_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)

-- name: save_change_key
UPDATE site.change_key
SET row_id = %(row_id)s, created_at = %(created_at)s, modified_at = %(modified_at)s, value = %(value)s
WHERE scope = %(scope)s AND key = %(key)s

-- name: select_unpublished_members
-- A deleted member needs its tombstone, another one this version or a newer one. The sender's key of the change, while
-- it is remembered, is the record's identity: a retry of the call then makes no second one.
SELECT m.id, m.nickname, m.city, m.phone, m.email, m.created_at, m.modified_at, m.deleted_at IS NOT NULL AS is_deleted,
    (SELECT k.key FROM site.change_key AS k
     WHERE k.topic = 'member' AND k.row_id = m.id AND k.modified_at = m.modified_at ORDER BY k.scope, k.key LIMIT 1)
FROM site.member AS m
WHERE m.modified_at >= %(since)s AND m.modified_at < %(until)s
  AND NOT EXISTS (
    SELECT FROM published_version AS p
    WHERE p.id = m.id
      AND CASE WHEN m.deleted_at IS NULL THEN p.modified_at >= m.modified_at ELSE p.modified_at IS NULL END
)
ORDER BY m.modified_at, m.id

-- name: select_unpublished_boards
-- as select_unpublished_members
SELECT b.id, b.document, b.modified_at, b.deleted_at IS NOT NULL AS is_deleted,
    (SELECT k.key FROM site.change_key AS k
     WHERE k.topic = 'board' AND k.row_id = b.id AND k.modified_at = b.modified_at ORDER BY k.scope, k.key LIMIT 1)
FROM site.board_document AS b
WHERE b.modified_at >= %(since)s AND b.modified_at < %(until)s
  AND NOT EXISTS (
    SELECT FROM published_version AS p
    WHERE p.id = b.id
      AND CASE WHEN b.deleted_at IS NULL THEN p.modified_at >= b.modified_at ELSE p.modified_at IS NULL END
)
ORDER BY b.modified_at, b.id

-- name: select_committed_until
SELECT clock_timestamp() - make_interval(secs => %(min_age_s)s)

-- name: create_published_version
CREATE TEMPORARY TABLE IF NOT EXISTS published_version (
    id bigint NOT NULL,
    modified_at timestamptz, -- null: a tombstone
    row_at timestamptz, -- the version, of a record that the API made of its row; null: of another one
    value jsonb -- of such a record; null: it was deleted
)

-- name: truncate_published_version
TRUNCATE published_version

-- name: copy_published_version
COPY published_version (id, modified_at, row_at, value) FROM STDIN WITH (FORMAT csv)

-- name: date_back_members
-- The present as the version of rows whose version no reader accepts yet, deleted ones too.
UPDATE site.member SET modified_at = date_trunc('milliseconds', clock_timestamp())
WHERE modified_at > clock_timestamp() + %(tolerance)s
RETURNING id

-- name: date_back_boards
-- as date_back_members
UPDATE site.board_document AS board
SET modified_at = made.at,
    document = board.document || jsonb_build_object(
        'modifiedAt', to_char(made.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
FROM (SELECT date_trunc('milliseconds', clock_timestamp()) AS at) AS made
WHERE board.modified_at > made.at + %(tolerance)s
RETURNING board.id

-- name: correct_timelines
-- A timeline that was noted while the server's clock was ahead is as young as it can be.
UPDATE database_timeline SET first_seen_at = clock_timestamp()
WHERE reconciled_at IS NULL AND first_seen_at > clock_timestamp()

-- name: select_unreconciled
SELECT timeline, first_seen_at, replayed_until FROM database_timeline WHERE reconciled_at IS NULL ORDER BY first_seen_at

-- name: save_reconciled
UPDATE database_timeline SET reconciled_at = clock_timestamp() WHERE timeline = ANY (%(timelines)s)

-- name: write_back_members
-- Rows and versions that were lost with the old primary, from their records: returns their ids, and whether the row was
-- missing. A row with a tombstone was deleted or forgotten since, and does not come back. Records of an id with another
-- time of creation are of another row: it stays as it is.
WITH newest AS (
    SELECT DISTINCT ON (id) id, row_at, value FROM published_version WHERE row_at IS NOT NULL ORDER BY id, row_at DESC
), written AS (
    INSERT INTO site.member AS m (id, nickname, city, phone, email, created_at, modified_at)
    SELECT n.id, n.value ->> 'nickname', n.value ->> 'city', n.value ->> 'phone', n.value ->> 'email',
           (n.value ->> 'createdAt')::timestamptz, n.row_at
      FROM newest n
     WHERE NOT EXISTS (SELECT FROM published_version p WHERE p.id = n.id AND p.modified_at IS NULL)
       AND NOT EXISTS (SELECT FROM forgotten_key f WHERE f.{{table_key}} = n.id)
    ON CONFLICT (id) DO UPDATE
       SET nickname = excluded.nickname, city = excluded.city, phone = excluded.phone, email = excluded.email,
           modified_at = excluded.modified_at
     WHERE m.modified_at < excluded.modified_at AND m.deleted_at IS NULL AND m.created_at = excluded.created_at
    RETURNING id
), deleted AS (
    UPDATE site.member m SET deleted_at = n.row_at, modified_at = n.row_at
      FROM newest n
     WHERE n.id = m.id AND n.value IS NULL AND m.deleted_at IS NULL AND m.modified_at < n.row_at
       AND NOT EXISTS (SELECT FROM published_version p
                        WHERE p.id = m.id AND (p.value ->> 'createdAt')::timestamptz <> m.created_at)
    RETURNING m.id
)
SELECT w.id, m.id IS NULL FROM written w LEFT JOIN site.member m ON m.id = w.id
 UNION ALL
SELECT id, false FROM deleted

-- name: write_back_boards
-- as write_back_members
WITH newest AS (
    SELECT DISTINCT ON (id) id, row_at, value FROM published_version WHERE row_at IS NOT NULL ORDER BY id, row_at DESC
), written AS (
    INSERT INTO site.board_document AS b (id, document, modified_at)
    SELECT n.id, n.value, n.row_at
      FROM newest n
     WHERE NOT EXISTS (SELECT FROM published_version p WHERE p.id = n.id AND p.modified_at IS NULL)
       AND NOT EXISTS (SELECT FROM forgotten_key f
                        WHERE f.{{table_key}} = (n.value ->> 'memberId')::bigint OR n.id = ANY (f.stream_keys))
    ON CONFLICT (id) DO UPDATE SET document = excluded.document, modified_at = excluded.modified_at
     WHERE b.modified_at < excluded.modified_at AND b.deleted_at IS NULL
       AND b.document -> 'createdAt' = excluded.document -> 'createdAt'
    RETURNING id
), deleted AS (
    UPDATE site.board_document b SET deleted_at = n.row_at, modified_at = n.row_at
      FROM newest n
     WHERE n.id = b.id AND n.value IS NULL AND b.deleted_at IS NULL AND b.modified_at < n.row_at
       AND NOT EXISTS (SELECT FROM published_version p
                        WHERE p.id = b.id AND p.value -> 'createdAt' <> b.document -> 'createdAt')
    RETURNING b.id
)
SELECT w.id, b.id IS NULL FROM written w LEFT JOIN site.board_document b ON b.id = w.id
 UNION ALL
SELECT id, false FROM deleted

-- name: select_without_record_members
-- Between lost ids, the first and last of those of which there is neither a row nor a record. A greater distance is that
-- of two timelines.
SELECT before + 1, id - 1
  FROM (SELECT id, lag(id) OVER (ORDER BY id) AS before
          FROM (SELECT id FROM site.member WHERE id BETWEEN %(first)s AND %(last)s
                 UNION
                SELECT id FROM published_version WHERE id BETWEEN %(first)s AND %(last)s) known) known
 WHERE id - before BETWEEN 2 AND 1000
 ORDER BY 1

-- name: select_without_record_boards
SELECT before + 1, id - 1
  FROM (SELECT id, lag(id) OVER (ORDER BY id) AS before
          FROM (SELECT id FROM site.board_document WHERE id BETWEEN %(first)s AND %(last)s
                 UNION
                SELECT id FROM published_version WHERE id BETWEEN %(first)s AND %(last)s) known) known
 WHERE id - before BETWEEN 2 AND 1000
 ORDER BY 1

-- name: select_with_tombstone_members
-- Rows that are there although a tombstone of them was published that the API did not make of its row.
SELECT m.id FROM site.member m
 WHERE m.deleted_at IS NULL
   AND EXISTS (SELECT FROM published_version p WHERE p.id = m.id AND p.modified_at IS NULL AND p.row_at IS NULL)
 ORDER BY m.id

-- name: select_with_tombstone_boards
SELECT b.id FROM site.board_document b
 WHERE b.deleted_at IS NULL
   AND EXISTS (SELECT FROM published_version p WHERE p.id = b.id AND p.modified_at IS NULL AND p.row_at IS NULL)
 ORDER BY b.id

-- name: select_given_twice_members
-- Rows whose id has a record of another row: the database was restored, and gave the id again.
SELECT m.id FROM site.member m
 WHERE EXISTS (SELECT FROM published_version p
                WHERE p.id = m.id AND (p.value ->> 'createdAt')::timestamptz <> m.created_at)
 ORDER BY m.id

-- name: select_given_twice_boards
SELECT b.id FROM site.board_document b
 WHERE EXISTS (SELECT FROM published_version p
                WHERE p.id = b.id AND p.value -> 'createdAt' <> b.document -> 'createdAt')
 ORDER BY b.id
