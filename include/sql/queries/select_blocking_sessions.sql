-- Those that the backend waits for now, those before it in the queue too.
SELECT a.pid, a.application_name, a.usename, a.state, a.xact_start,
       (SELECT w.relation::regclass::text FROM pg_locks w WHERE w.pid = %(pid)s AND NOT w.granted LIMIT 1) AS waits_for
  FROM pg_stat_activity a
 WHERE a.pid = ANY (pg_blocking_pids(%(pid)s))
 ORDER BY a.xact_start, a.pid
