-- Of rows that are removed, and of builds whose counts change with them.
SELECT day
  FROM day_publication
 WHERE day IN (SELECT day FROM board_detail_live WHERE member_id = %(member_id)s
               UNION ALL SELECT day FROM board_detail_covered WHERE member_id = %(member_id)s
               UNION ALL SELECT day FROM generation WHERE id = ANY (%(generation_ids)s::bigint[]))
 ORDER BY day FOR UPDATE
