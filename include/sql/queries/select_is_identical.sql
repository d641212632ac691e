-- Would publishing it change anything? Not when rows, counts and the boards that are no rows are the same, no more
-- places in the output topic are known, and no live row stands below its cut.
SELECT CASE
           WHEN (n.content_hash, n.row_count, n.raw_distinct, n.pending_count, n.rejected_count)
                IS DISTINCT FROM (o.content_hash, o.row_count, o.raw_distinct, o.pending_count, o.rejected_count)
               THEN false
           WHEN EXISTS (SELECT 1 FROM board_detail_live l
                         WHERE l.day = n.day
                           AND l.board_offset < (n.cut -> 'board' ->> l.board_partition::text)::bigint
                           AND NOT EXISTS (SELECT 1 FROM generation_excluded e
                                            WHERE e.generation_id = n.id AND e.kind = 'pending'
                                              AND e.board_id = l.{{key}}
                          AND l.member_offset >= COALESCE((n.cut -> 'member' ->> l.member_partition::text)::bigint, 0)))
               THEN false
           WHEN EXISTS (SELECT kind, identity FROM generation_excluded WHERE generation_id = n.id
                        EXCEPT SELECT kind, identity FROM generation_excluded WHERE generation_id = o.id)
                OR EXISTS (SELECT kind, identity FROM generation_excluded WHERE generation_id = o.id
                           EXCEPT SELECT kind, identity FROM generation_excluded WHERE generation_id = n.id)
               THEN false
           ELSE (SELECT count(f.kafka_offset) FROM board_detail_final f WHERE f.generation_id = %(generation_id)s)
                <= (SELECT count(f.kafka_offset) FROM board_detail_final f WHERE f.generation_id = %(shown_id)s)
       END
  FROM generation n CROSS JOIN generation o
 WHERE n.id = %(generation_id)s AND o.id = %(shown_id)s
