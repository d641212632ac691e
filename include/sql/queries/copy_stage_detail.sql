COPY stage_detail ({{served}}, day, deleted) FROM STDIN WITH (FORMAT csv)
