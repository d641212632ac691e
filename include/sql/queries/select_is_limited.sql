-- True if limit_analysts was run in this database.
SELECT NOT has_function_privilege('analyst', 'pg_advisory_lock(bigint)', 'EXECUTE')
   AND NOT has_database_privilege('analyst', current_database(), 'TEMPORARY')
