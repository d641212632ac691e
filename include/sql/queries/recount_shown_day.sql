-- A certificate counted the rows that are gone now: the day can be certified again.
UPDATE day_publication p
   SET raw_distinct = g.raw_distinct, row_count = g.row_count, content_hash = g.content_hash,
       status = CASE p.status WHEN 'certified' THEN 'rebuilt' ELSE p.status END, certified_at = NULL
  FROM generation g
 WHERE g.id = %(generation_id)s AND p.generation_id = g.id
