SELECT set_config('client_connection_check_interval', '1000', false),
       set_config('lock_timeout', %(lock_timeout_ms)s, false),
       set_config('statement_timeout', %(statement_timeout_ms)s, false)
