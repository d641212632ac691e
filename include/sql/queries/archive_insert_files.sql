INSERT INTO archive_file (batch_id, kind, day, path, record_count, byte_count, first_key, last_key) VALUES %s
