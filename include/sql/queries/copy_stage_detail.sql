COPY stage_detail ({{served}}, day, deleted) FROM STDIN (FORMAT binary)
