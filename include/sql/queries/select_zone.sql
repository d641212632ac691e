SELECT value FROM pipeline_setting WHERE name = 'timezone'
