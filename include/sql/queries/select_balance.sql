SELECT generation_id, status, raw_distinct, row_count, pending_count, rejected_count,
       (SELECT count(*) FROM board_detail_final f WHERE f.generation_id = p.generation_id) AS counted_rows,
       content_hash
  FROM day_publication p WHERE day = %(day)s
