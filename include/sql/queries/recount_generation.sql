UPDATE generation
   SET raw_distinct = raw_distinct - (row_count - %(row_count)s), row_count = %(row_count)s,
       content_hash = %(content_hash)s
 WHERE id = %(generation_id)s
