-- For this transaction.
SELECT set_config('statement_timeout', %(timeout_ms)s, true), set_config('lock_timeout', %(timeout_ms)s, true)
