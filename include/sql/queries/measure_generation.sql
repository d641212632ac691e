-- The hash depends on raw and the cut alone: not on the order of rows, nor on what the speed layer made of them.
SELECT count(*), COALESCE(max({{version}}), 'epoch'), min({{key}}), max({{key}}), min({{day_from}})::text,
       max({{day_from}})::text,
       COALESCE(sum(hash_record_extended(ROW({{built}}), 0)), 0)::text
  FROM {table}
