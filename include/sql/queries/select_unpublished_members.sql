-- A deleted member needs its tombstone, another one this version or a newer one. The sender's key of the change, while
-- it is remembered, is the record's identity: a retry of the call then makes no second one.
SELECT m.id, m.nickname, m.city, m.phone, m.email, m.created_at, m.modified_at, m.deleted_at IS NOT NULL AS is_deleted,
    (SELECT k.key FROM change_key AS k
     WHERE k.topic = 'member' AND k.row_id = m.id AND k.modified_at = m.modified_at ORDER BY k.scope, k.key LIMIT 1)
FROM member AS m
WHERE m.modified_at >= %(since)s AND m.modified_at < %(until)s
  AND NOT EXISTS (
    SELECT FROM published_version AS p
    WHERE p.id = m.id
      AND CASE WHEN m.deleted_at IS NULL THEN p.modified_at >= m.modified_at ELSE p.modified_at IS NULL END
)
ORDER BY m.modified_at, m.id
