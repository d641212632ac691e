SELECT {{key}}, {{version}}, board_offset
  FROM board_detail_final
 WHERE day = date '1970-01-01' + %(day_number)s AND generation_id = %(generation_id)s
   AND {{key}} = ANY (%(keys)s::bigint[])
