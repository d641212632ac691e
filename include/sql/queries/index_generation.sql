ALTER TABLE {table}
    ADD PRIMARY KEY ({{key}}),
    ADD CONSTRAINT {check} CHECK (generation_id = {generation_id} AND day = {day})
