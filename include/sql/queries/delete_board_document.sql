UPDATE board_document
SET deleted_at = clock_timestamp(),
    modified_at = greatest(date_trunc('milliseconds', clock_timestamp()), modified_at + interval '1 millisecond')
WHERE id = %(id)s AND deleted_at IS NULL
RETURNING id, modified_at
