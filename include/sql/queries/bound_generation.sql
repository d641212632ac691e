-- A query by key or by time, without a day, is planned without the tables that cannot have its rows.
ALTER TABLE {table} ADD CHECK ({{key}} BETWEEN {first_key} AND {last_key}
                               AND {{day_from}} BETWEEN {earliest} AND {latest})
