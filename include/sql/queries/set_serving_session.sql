-- client_connection_check_interval: the backend of a driver that was killed ends its statement too, and its locks.
SELECT set_config('client_connection_check_interval', '1000', false),
       set_config('lock_timeout', %(lock_timeout_ms)s, false),
       set_config('statement_timeout', %(statement_timeout_ms)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle_in_transaction_timeout_ms)s, false),
       set_config('temp_buffers', '64MB', false),
       set_config('jit', 'off', false)
