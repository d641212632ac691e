-- Boards of the day that the system of record has, or that the stream showed until a publication covered them, and of
-- which the generation says nothing: neither a row, nor pending, rejected, deleted or moved. Nor are they live.
SELECT count(*)
  FROM (SELECT id AS board_id FROM board_document
         WHERE deleted_at IS NULL
           AND (document ->> 'createdAt') COLLATE "C" >= %(start)s AND (document ->> 'createdAt') COLLATE "C" < %(end)s
         UNION
        SELECT {{key}} FROM board_detail_covered WHERE day = %(day)s AND NOT deleted) known
 WHERE NOT EXISTS (SELECT FROM board_detail_final f
                    WHERE f.generation_id = %(generation_id)s AND f.{{key}} = known.board_id)
   AND NOT EXISTS (SELECT FROM generation_excluded e
                    WHERE e.generation_id = %(generation_id)s AND e.board_id = known.board_id)
   AND NOT EXISTS (SELECT FROM board_detail_live l WHERE l.{{key}} = known.board_id)
   AND NOT EXISTS (SELECT FROM pending_board w WHERE w.board_id = known.board_id)
