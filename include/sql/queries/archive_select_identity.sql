SELECT value FROM pipeline_setting WHERE name = 'archive_id'
