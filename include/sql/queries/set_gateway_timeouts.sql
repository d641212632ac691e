SELECT set_config('statement_timeout', %(statement_timeout_ms)s, false),
    set_config('lock_timeout', %(statement_timeout_ms)s, false)
