-- client_connection_check_interval: the backend of a publisher that was killed ends, and lets go of the day.
SELECT set_config('client_connection_check_interval', '1000', false),
       set_config('lock_timeout', %(lock_timeout_ms)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle_in_transaction_timeout_ms)s, false)
