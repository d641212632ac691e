SELECT {{key}} FROM board_detail WHERE day = %(day)s AND {{key}} = ANY (%(keys)s::bigint[])
