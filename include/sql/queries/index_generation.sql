CREATE UNIQUE INDEX {index} ON {table} ({{key}})
