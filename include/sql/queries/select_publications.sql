SELECT id, day, action, from_generation_id, to_generation_id, reason, made_by, covered_rows, restored_rows, made_at
  FROM publication WHERE day = %(day)s ORDER BY id
