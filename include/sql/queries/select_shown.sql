-- What these days show: the generation, how far it goes, and the keys that it lies between; the newest day first.
SELECT p.day, g.id, COALESCE(p.board_ends, '{}'), COALESCE(p.member_ends, '{}'), g.first_key, g.last_key
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE p.day = ANY (%(days)s::date[])
 ORDER BY p.day DESC
