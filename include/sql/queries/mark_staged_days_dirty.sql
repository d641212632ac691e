INSERT INTO dirty_day AS d (day, cause, count)
SELECT s.day, 'late board', count(*)
  FROM stage_detail s JOIN day_publication p ON p.day = s.day AND p.generation_id IS NOT NULL
 GROUP BY s.day
ON CONFLICT (day, cause) DO UPDATE SET count = d.count + excluded.count, last_at = now()
