-- Checked while it is loaded, so that neither the key nor attaching it reads the table once more.
CREATE TABLE {table} (
    LIKE board_detail_final INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    CONSTRAINT {check} CHECK (generation_id = {generation_id} AND day = {day})
);
ALTER TABLE {table} ALTER COLUMN {{key}} SET NOT NULL
