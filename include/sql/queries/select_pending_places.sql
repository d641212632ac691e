-- By id first: what a board is large in is read when it is known how many fit.
SELECT topic, partition, "offset", octet_length(value) + COALESCE(octet_length(key), 0)
  FROM pending_board
 WHERE sent_at IS NULL
   AND member_id = ANY (%(members)s::bigint[])
   AND (topic, partition, "offset") > (%(topic)s, %(partition)s, %(offset)s)
 ORDER BY topic, partition, "offset"
 LIMIT %(limit)s
