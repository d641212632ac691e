INSERT INTO day_publication (day) SELECT DISTINCT day FROM stage_detail WHERE day IS NOT NULL ORDER BY day
ON CONFLICT (day) DO NOTHING
