-- Boards of the day that the system of record has, or that the stream made rows of, and of which the generation says
-- nothing: neither a row, nor pending, rejected, deleted or moved. What came since shows them neither.
WITH known AS (
    SELECT id AS board_id FROM board_document
     WHERE deleted_at IS NULL
       AND (document ->> 'createdAt') COLLATE "C" >= %(start)s AND (document ->> 'createdAt') COLLATE "C" < %(end)s
     UNION
    SELECT {{key}} FROM board_detail_covered WHERE day = %(day)s AND NOT deleted
     UNION
    SELECT {{key}} FROM board_detail_live WHERE day = %(day)s AND NOT deleted
), unsaid AS MATERIALIZED (
    SELECT k.board_id
      FROM known k
     WHERE NOT EXISTS (SELECT FROM board_detail_final f
                        WHERE f.day = %(day)s AND f.generation_id = %(generation_id)s AND f.{{key}} = k.board_id)
       AND NOT EXISTS (SELECT FROM generation_excluded e
                        WHERE e.generation_id = %(generation_id)s AND e.board_id = k.board_id)
)
SELECT count(*)
  FROM unsaid u
 WHERE NOT EXISTS (SELECT FROM pending_board w WHERE w.board_id = u.board_id)
   AND NOT EXISTS (SELECT FROM board_detail_live l LEFT JOIN day_publication p ON p.day = l.day
                    WHERE l.{{key}} = u.board_id
                      AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.{{key}}, l.board_partition,
                                         l.board_offset, l.member_partition, l.member_offset))
