INSERT INTO generation_excluded
    (generation_id, kind, identity, board_id, board_partition, board_offset, reason, version_at)
VALUES %s
ON CONFLICT DO NOTHING
