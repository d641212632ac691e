SELECT COALESCE(sum(next_offset), 0)::bigint AS count FROM offset_ledger WHERE consumer = 'serve'
