-- Another zone takes the place of the one kept as long as no day is filed under that.
INSERT INTO pipeline_setting (name, value) VALUES ('timezone', %(zone)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
 WHERE NOT EXISTS (SELECT FROM day_publication)
   AND NOT EXISTS (SELECT FROM pending_board)
   AND NOT EXISTS (SELECT FROM archive_file)
