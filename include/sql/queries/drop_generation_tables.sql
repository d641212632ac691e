-- Attached ones take the lock that all readers of board_detail wait behind: it is waited for as long as the first says.
SELECT set_config('lock_timeout', %(lock_timeout)s, true), generations.drop_table(id) FROM unnest(%(ids)s::bigint[]) id
