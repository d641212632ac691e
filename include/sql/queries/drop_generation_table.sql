-- Attached, it takes the lock that all readers of board_detail wait behind: only for as long as the first says.
SELECT set_config('lock_timeout', %(lock_timeout)s, true), generations.drop_table(%(generation_id)s)
