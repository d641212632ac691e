SELECT c.class, count(*) AS count
  FROM board_detail_correction c
  JOIN day_publication p ON p.generation_id = c.generation_id
 WHERE p.day = %(day)s
 GROUP BY c.class ORDER BY c.class
