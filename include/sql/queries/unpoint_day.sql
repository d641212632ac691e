-- Back to the speed layer's rows alone.
UPDATE day_publication
   SET generation_id = NULL, cut = NULL, status = 'provisional', raw_distinct = NULL, row_count = NULL,
       pending_count = NULL, rejected_count = NULL, content_hash = NULL,
       published_at = NULL, moved_at = now(), certified_at = NULL
 WHERE day = %(day)s AND generation_id = %(shown_id)s
