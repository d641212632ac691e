INSERT INTO day_certificate (day, generation_id, term, position, value, query, note) VALUES %s
