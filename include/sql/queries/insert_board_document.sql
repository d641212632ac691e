WITH made AS (
    SELECT nextval('board_id_seq') AS id, date_trunc('milliseconds', clock_timestamp()) AS at
), stamped AS (
    SELECT id, at, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS text FROM made
)
INSERT INTO board_document (id, document, modified_at)
SELECT id, %(fields)s::jsonb || jsonb_build_object('id', id, 'createdAt', text, 'modifiedAt', text), at
FROM stamped
RETURNING id, document, modified_at
