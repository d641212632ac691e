-- Compare and set of the pointer: no row means that another run published the day meanwhile.
UPDATE day_publication p
   SET generation_id = g.id, cut = g.cut, status = 'rebuilt', raw_distinct = g.raw_distinct, row_count = g.row_count,
       pending_count = g.pending_count, rejected_count = g.rejected_count, content_hash = g.content_hash,
       published_at = now(), moved_at = now(), certified_at = NULL
  FROM generation g
 WHERE p.day = %(day)s AND g.id = %(generation_id)s AND g.status IN ('built', 'superseded')
   AND p.generation_id IS NOT DISTINCT FROM %(shown_id)s
