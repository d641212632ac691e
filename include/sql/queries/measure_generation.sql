-- The hash does not depend on the order of rows, nor on which generation holds them.
SELECT count(*),
       COALESCE(sum(('x' || substr(md5(ROW({{served}})::text), 1, 15))::bit(60)::bigint::numeric), 0)::text
  FROM {table}
