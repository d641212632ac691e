INSERT INTO generation_load (generation_id, part, row_count) VALUES (%(generation_id)s, %(part)s, %(row_count)s)
ON CONFLICT DO NOTHING
