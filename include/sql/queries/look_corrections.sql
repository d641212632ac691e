SELECT c.key AS class, c.value::bigint AS count
  FROM day_trust t CROSS JOIN LATERAL jsonb_each_text(t.corrections) c
 WHERE t.day = %(day)s
 ORDER BY c.key
