SELECT (SELECT count(*) FROM board_detail_correction c WHERE c.generation_id = g.id)
     + (SELECT COALESCE(sum(value::bigint), 0) FROM jsonb_each_text(g.unlisted_corrections))
  FROM generation g WHERE g.id = %(generation_id)s
