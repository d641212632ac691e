-- Takes from all roles what could stop the pipeline, and gives it to the pipeline's own. Idempotent; a superuser runs it
-- in the pipeline's database. Locks of the pipeline are advisory locks, which anybody could take; large objects,
-- temporary tables and exported snapshots fill the disk, and no limit counts them. A DO block fills the server's log and
-- uses up transaction ids. Functions that make XML of a table, and those that maintain an index, lock a table before they
-- check the caller's rights. SET of a session can raise the two time-outs, not the rest.
-- Repeatable read: PostgreSQL plans a query before it takes the snapshot of READ COMMITTED. A generation that is attached
-- and shown in between is not in the plan, and its day would be empty.
DO $$
DECLARE
    pipeline text[] := ARRAY['pipeline_owner', 'gateway', 'stream', 'batch', 'integrity'];
    limits CONSTANT text[] := ARRAY[
        ['statement_timeout', '10min', '0'],
        ['idle_in_transaction_session_timeout', '1min', '0'],
        ['temp_file_limit', '2GB', '-1'],
        ['default_transaction_isolation', 'repeatable read', 'read committed']];
    called regprocedure;
    name text;
BEGIN
    FOR called IN
        SELECT p.oid FROM pg_proc p
         WHERE p.pronamespace = 'pg_catalog'::regnamespace
           AND (p.proname ~ '^(pg_(try_)?advisory_|lo_|loread$|lowrite$|pg_logical_emit_message$|pg_export_snapshot$)'
                OR p.proname ~ '^(brin_(de)?summarize_|gin_clean_pending_list$|(table|query|cursor|schema|database)_to_xml)')
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', called);
        IF called::text ~ 'advisory' THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO pipeline_owner, stream, batch', called);
        END IF;
    END LOOP;

    EXECUTE format('REVOKE CONNECT, TEMPORARY ON DATABASE %I FROM PUBLIC, analyst', current_database());
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO gateway, stream, batch', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO integrity, analyst, analyst_personal', current_database());

    REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC;
    GRANT USAGE ON LANGUAGE plpgsql TO pipeline_owner;

    -- Before a DDL statement takes a lock: PostgreSQL checks the owner of a table after it has waited for the lock, with
    -- all others behind it. The function belongs to the superuser, for it runs as whoever runs the statement.
    CREATE SCHEMA IF NOT EXISTS guard;
    CREATE OR REPLACE FUNCTION guard.refuse_ddl() RETURNS event_trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $f$
    BEGIN
        IF session_user NOT IN ('pipeline_owner', 'gateway', 'stream', 'batch')
           AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = session_user)
        THEN
            RAISE insufficient_privilege
                USING MESSAGE = format('role %s may not run %s in this database', session_user, tg_tag),
                      HINT = 'Migrations change the schema; they run as pipeline_owner.';
        END IF;
    END
    $f$;
    IF NOT EXISTS (SELECT 1 FROM pg_event_trigger WHERE evtname = 'refuse_ddl') THEN
        CREATE EVENT TRIGGER refuse_ddl ON ddl_command_start EXECUTE FUNCTION guard.refuse_ddl();
    END IF;

    -- of the database, so that they hold for the login of a person too; the superuser has none
    FOR n IN 1..array_length(limits, 1) LOOP
        EXECUTE format('ALTER DATABASE %I SET %I = %L', current_database(), limits[n][1], limits[n][2]);
        FOREACH name IN ARRAY pipeline || current_user::text LOOP
            EXECUTE format('ALTER ROLE %I IN DATABASE %I SET %I = %L', name, current_database(), limits[n][1],
                           limits[n][3]);
        END LOOP;
        EXECUTE format('ALTER ROLE analyst IN DATABASE %I RESET %I', current_database(), limits[n][1]);
        EXECUTE format('ALTER ROLE analyst RESET %I', limits[n][1]);
    END LOOP;
    ALTER ROLE analyst CONNECTION LIMIT 20;

    -- PostgreSQL 16 has reserved_connections
    FOR name IN
        SELECT r.rolname FROM pg_roles r
         WHERE r.rolname = ANY (pipeline || 'airflow'::text)
           AND EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'pg_use_reserved_connections')
    LOOP
        EXECUTE format('GRANT pg_use_reserved_connections TO %I', name);
    END LOOP;
END
$$;
