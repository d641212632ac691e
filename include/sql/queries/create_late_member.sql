CREATE TEMPORARY TABLE late_member
    (member_id bigint, partition integer, "offset" bigint, version_at timestamptz) ON COMMIT DROP
