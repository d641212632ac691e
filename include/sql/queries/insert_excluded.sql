INSERT INTO generation_excluded
    (generation_id, kind, identity, board_id, board_partition, board_offset, reason)
VALUES %s
ON CONFLICT DO NOTHING
