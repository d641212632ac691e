-- What the published days show, and between which keys: the newest day first.
SELECT p.day - date '1970-01-01', g.id, g.first_key, g.last_key
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE g.first_key IS NOT NULL
 ORDER BY p.day DESC
