-- Of what the day shows: the generation, and what its build found.
SELECT p.generation_id, g.row_count, g.content_hash
  FROM day_publication p LEFT JOIN generation g ON g.id = p.generation_id
 WHERE p.day = %(day)s
