CREATE TEMPORARY TABLE stage_detail (
    {{served_typed}},
    day date,
    deleted boolean NOT NULL
) ON COMMIT DROP
