-- The terms, when they do not add up.
SELECT raw_distinct, row_count, pending_count, rejected_count
  FROM generation
 WHERE id = %(generation_id)s AND raw_distinct IS DISTINCT FROM row_count + pending_count + rejected_count
