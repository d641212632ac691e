SELECT DISTINCT member_id
  FROM pending_board
 WHERE sent_at IS NULL
   AND (%(after)s::bigint IS NULL OR member_id > %(after)s::bigint)
 ORDER BY member_id
 LIMIT %(limit)s
