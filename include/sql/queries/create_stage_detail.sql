-- Once a connection: made anew for each batch it would cost as much as a small batch itself.
CREATE TEMPORARY TABLE IF NOT EXISTS stage_detail (
    {{served_typed}},
    day date,
    deleted boolean NOT NULL
) ON COMMIT DELETE ROWS
