-- Rows on top of what the day shows whose records no build can read any more: a gap of the archive was accepted.
SELECT count(*)
  FROM day_publication p
 CROSS JOIN LATERAL jsonb_each(p.cut -> 'unread' -> 'board') AS lost (partition, ranges)
 CROSS JOIN LATERAL jsonb_array_elements(lost.ranges) AS piece (ends)
  JOIN board_detail_live l
    ON l.day = p.day AND l.board_partition = lost.partition::integer
   AND l.board_offset >= (piece.ends ->> 0)::bigint AND l.board_offset < (piece.ends ->> 1)::bigint
 WHERE p.day = %(day)s AND p.generation_id IS NOT NULL
