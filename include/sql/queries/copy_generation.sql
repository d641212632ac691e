COPY {table} (generation_id, day, {{served}}, replayed) FROM STDIN (FORMAT binary)
