-- Those of the boards that have a row, in front of readers or covered, or wait for their member; no more than the limit.
SELECT {{key}} FROM board_detail_live WHERE {{key}} = ANY (%(keys)s::bigint[])
UNION ALL
SELECT {{key}} FROM board_detail_covered WHERE {{key}} = ANY (%(keys)s::bigint[])
UNION ALL
SELECT board_id FROM pending_board WHERE board_id = ANY (%(keys)s::bigint[])
LIMIT %(limit)s
