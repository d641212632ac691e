SELECT count(*) FROM board_document
 WHERE deleted_at IS NULL
   AND (document ->> 'createdAt') COLLATE "C" >= %(start)s AND (document ->> 'createdAt') COLLATE "C" < %(end)s
