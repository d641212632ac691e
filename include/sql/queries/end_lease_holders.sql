-- Ends the sessions in whose transaction a driver holds its lease.
SELECT holder.application_name, holder.client_addr::text, pg_terminate_backend(holder.pid)
  FROM pg_locks l
  JOIN pg_stat_activity holder USING (pid)
 WHERE l.locktype = 'relation' AND l.relation = 'stream_driver'::regclass AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND holder.pid <> pg_backend_pid() AND holder.usename = current_user
