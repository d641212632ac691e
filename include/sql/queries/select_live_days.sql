SELECT DISTINCT day FROM board_detail_live WHERE {{key}} = ANY (%(keys)s::bigint[]) AND day IS NOT NULL AND NOT deleted
