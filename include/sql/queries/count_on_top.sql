SELECT count(*)
  FROM board_detail_live l JOIN day_publication p ON p.day = l.day
 WHERE l.day = %(day)s
   AND NOT is_covered(p.generation_id, p.board_ends, p.member_ends, l.{{key}}, l.board_partition, l.board_offset,
                      l.member_partition, l.member_offset)
