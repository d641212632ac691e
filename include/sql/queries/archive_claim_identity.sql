INSERT INTO pipeline_setting (name, value) VALUES ('archive_id', gen_random_uuid()::text)
ON CONFLICT (name) DO NOTHING
