COPY board_detail_live ({{served}}, day, deleted) FROM STDIN (FORMAT binary)
