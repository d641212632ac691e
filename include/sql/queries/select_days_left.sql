-- Published days between whose keys the speed layer has a row, or a deletion, of another day. The order leads over the
-- index of keys. All such days, or one if it is.
SELECT p.day
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE (%(day)s::date IS NULL OR p.day = %(day)s)
   AND (SELECT true FROM board_detail_live l
         WHERE l.{{key}} BETWEEN g.first_key AND g.last_key AND l.day <> p.day ORDER BY l.{{key}} LIMIT 1)
