-- The database itself: its revision, roles, limits, settings and the sessions that block a migration.

-- name: lock_migrations
SELECT pg_advisory_xact_lock(7203001)

-- name: select_role
SELECT 1 FROM pg_roles WHERE rolname = %(role)s

-- name: select_is_database_owner
SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()

-- name: select_is_limited
-- True if limit_analysts was run in this database.
SELECT NOT has_function_privilege('analyst', 'pg_advisory_lock(bigint)', 'EXECUTE')
   AND NOT has_database_privilege('analyst', current_database(), 'TEMPORARY')

-- name: save_setting
INSERT INTO pipeline_setting (name, value) VALUES (%(name)s, %(value)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: select_blocking_sessions
-- Those that the backend waits for now, those before it in the queue too.
SELECT a.pid, a.application_name, a.usename, a.state, a.xact_start,
       (SELECT w.relation::regclass::text FROM pg_locks w WHERE w.pid = %(pid)s AND NOT w.granted LIMIT 1) AS waits_for
  FROM pg_stat_activity a
 WHERE a.pid = ANY (pg_blocking_pids(%(pid)s))
 ORDER BY a.xact_start, a.pid

-- name: keep_zone
-- Another zone takes the place of the one kept as long as no day is filed under that.
INSERT INTO pipeline_setting (name, value) VALUES ('timezone', %(zone)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
 WHERE NOT EXISTS (SELECT FROM day_publication)
   AND NOT EXISTS (SELECT FROM pending_record)
   AND NOT EXISTS (SELECT FROM archive_file)

-- name: select_zone
SELECT value FROM pipeline_setting WHERE name = 'timezone'

-- name: select_revision
-- And whether the database is the pipeline's: its view is named for it.
SELECT version_num, to_regclass('public.{{view}}') IS NOT NULL FROM alembic_version

-- name: select_is_migrated
-- And whether the schema is that of another pipeline.
SELECT to_regclass('public.alembic_version') IS NOT NULL,
       to_regclass('public.day_publication') IS NOT NULL AND to_regclass('public.{{view}}') IS NULL

-- name: save_revision
INSERT INTO alembic_version (version_num) VALUES (%(revision)s)
