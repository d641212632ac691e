ALTER TABLE board_detail_final ATTACH PARTITION {table}
    FOR VALUES FROM ({day}, {generation_id}) TO ({day}, {next_id})
