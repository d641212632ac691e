-- as select_unpublished_members
SELECT b.id, b.document, b.modified_at, b.deleted_at IS NOT NULL AS is_deleted,
    (SELECT k.key FROM change_key AS k
     WHERE k.topic = 'board' AND k.row_id = b.id AND k.modified_at = b.modified_at ORDER BY k.scope, k.key LIMIT 1)
FROM board_document AS b
WHERE b.modified_at >= %(since)s AND b.modified_at < %(until)s
  AND NOT EXISTS (
    SELECT FROM published_version AS p
    WHERE p.id = b.id
      AND CASE WHEN b.deleted_at IS NULL THEN p.modified_at >= b.modified_at ELSE p.modified_at IS NULL END
)
ORDER BY b.modified_at, b.id
