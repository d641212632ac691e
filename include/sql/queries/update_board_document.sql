-- the document's own modifiedAt and the column are one instant, newer than the one before
WITH held AS (
    SELECT id, document -> 'createdAt' AS created,
        greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond') AS at
    FROM board_document
    WHERE id = %(id)s AND deleted_at IS NULL
    FOR UPDATE
)
UPDATE board_document AS board
SET modified_at = held.at,
    document = %(fields)s::jsonb || jsonb_build_object(
        'id', held.id, 'createdAt', held.created,
        'modifiedAt', to_char(held.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
FROM held
WHERE board.id = held.id
RETURNING board.id, board.document, board.modified_at
