INSERT INTO dirty_day AS d (day, cause, count)
SELECT s.day,
       CASE WHEN s.board_offset < p.board_ends[s.board_partition + 1]
            THEN 'late member' ELSE 'late board' END AS cause,
       count(*)
  FROM stage_detail s JOIN day_publication p ON p.day = s.day AND p.generation_id IS NOT NULL
 GROUP BY 1, 2
 ORDER BY 2, 1
ON CONFLICT (day, cause) DO UPDATE SET count = d.count + excluded.count, last_at = now()
