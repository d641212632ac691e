-- Would publishing it change anything? Not when rows, counts and the boards that are no rows are the same, no more
-- places in the output topic are known, and its cut covers no live row that readers see.
SELECT CASE
           WHEN (n.content_hash, n.row_count, n.raw_distinct, n.pending_count, n.rejected_count)
                IS DISTINCT FROM (o.content_hash, o.row_count, o.raw_distinct, o.pending_count, o.rejected_count)
               THEN false
           WHEN EXISTS (SELECT 1 FROM board_detail_live l
                         WHERE l.day = n.day
                           AND is_covered(n.id, n.board_ends, n.member_ends, l.{{key}}, l.board_partition,
                                          l.board_offset, l.member_partition, l.member_offset)
                           AND NOT is_covered(o.id, o.board_ends, o.member_ends, l.{{key}}, l.board_partition,
                                              l.board_offset, l.member_partition, l.member_offset))
               THEN false
           WHEN EXISTS (SELECT kind, identity FROM generation_excluded WHERE generation_id = n.id
                        EXCEPT SELECT kind, identity FROM generation_excluded WHERE generation_id = o.id)
                OR EXISTS (SELECT kind, identity FROM generation_excluded WHERE generation_id = o.id
                           EXCEPT SELECT kind, identity FROM generation_excluded WHERE generation_id = n.id)
               THEN false
           ELSE (SELECT count(f.kafka_offset) FROM board_detail_final f
                  WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s)
                <= (SELECT count(f.kafka_offset) FROM board_detail_final f
                     WHERE f.day = %(day)s AND f.generation_id = %(shown_id)s)
       END
  FROM generation n CROSS JOIN generation o
 WHERE n.id = %(generation_id)s AND o.id = %(shown_id)s
