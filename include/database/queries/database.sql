-- The database itself: its revision, roles, limits, settings and the sessions that block a migration.

-- name: lock_migrations
SELECT pg_advisory_xact_lock(7203001)

-- name: release_locks
-- All that the session holds.
SELECT pg_advisory_unlock_all()

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

-- name: select_clock
SELECT clock_timestamp()

-- name: select_is_migrated
-- And whether the schema is that of another pipeline.
SELECT to_regclass('public.alembic_version') IS NOT NULL,
       to_regclass('public.day_publication') IS NOT NULL AND to_regclass('public.{{view}}') IS NULL

-- name: save_revision
INSERT INTO alembic_version (version_num) VALUES (%(revision)s)

-- name: select_detail_columns
-- The definition's columns, as the tables of rows have them, and their types.
SELECT attname, replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz')
  FROM pg_attribute
 WHERE attrelid = 'public.detail_final'::regclass AND attnum > 0 AND NOT attisdropped
   AND attname <> ALL (%(others)s)
 ORDER BY attnum

-- name: select_setting
SELECT value FROM pipeline_setting WHERE name = %(name)s

-- name: select_view_grants
-- Statements that give the views and their function the rights that they have now.
SELECT format('GRANT %s ON %s %s TO %s%s', a.privilege_type, o.kind, o.name,
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
              CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
  FROM (SELECT 'TABLE' AS kind, oid::regclass::text AS name, relacl AS acl FROM pg_class
         WHERE oid IN ('public.{{view}}'::regclass, 'public.{{view}}_masked'::regclass,
                       to_regclass('public.{{view}}_certified'))
        UNION ALL
        SELECT 'FUNCTION', oid::regprocedure::text, proacl FROM pg_proc
         WHERE oid = 'public.{{view}}_by_key'::regproc) o
 CROSS JOIN LATERAL aclexplode(o.acl) a

-- name: drop_view
DROP FUNCTION {{view}}_by_key;
DROP VIEW IF EXISTS {{view}}_certified;
DROP VIEW {{view}}_masked, {{view}}

-- name: add_column
ALTER TABLE {table} ADD COLUMN {column} {type}

-- name: select_tables_without_column
-- Tables of builds that are not attached: of a build under way, and of one that is being dropped.
SELECT relname FROM pg_class c
 WHERE relnamespace = 'generations'::regnamespace AND relkind = 'r' AND relname ~ '^detail_final_g[0-9]+$'
   AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = %(column)s)

-- name: save_added_columns
-- And the day on which they were added, in the pipeline's time zone.
INSERT INTO pipeline_setting AS s (name, value)
SELECT 'added_columns', jsonb_object_agg(added, (now() AT TIME ZONE
           COALESCE((SELECT value FROM pipeline_setting WHERE name = 'timezone'), 'UTC'))::date)::text
  FROM unnest(%(columns)s::text[]) added
ON CONFLICT (name) DO UPDATE SET value = (s.value::jsonb || excluded.value::jsonb)::text

-- name: select_present_timeline
-- A restore that did not change the timeline is noted by its time.
SELECT timeline || ' since ' || first_seen_at FROM database_timeline WHERE timeline = current_timeline()

-- name: note_timeline
SELECT note_timeline()

-- name: note_restored
SELECT note_timeline(is_restored => true)
