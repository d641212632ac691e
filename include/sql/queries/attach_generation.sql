ALTER TABLE board_detail_final ATTACH PARTITION {table} FOR VALUES IN ({generation_id})
