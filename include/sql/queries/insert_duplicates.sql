INSERT INTO board_detail_correction (generation_id, day, board_id, class, rebuilt) VALUES %s
ON CONFLICT DO NOTHING
