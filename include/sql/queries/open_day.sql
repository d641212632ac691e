INSERT INTO day_publication (day) VALUES (%(day)s) ON CONFLICT (day) DO NOTHING
