"""A day whose pointer moved is held against the other days and the late members again, whenever it moves."""

from alembic import op

revision = "0017"
down_revision = "0016"

UNCHECKED = """
CREATE TABLE unchecked_day (
    day date PRIMARY KEY,
    request bigint GENERATED ALWAYS AS IDENTITY
);
COMMENT ON TABLE unchecked_day IS
    'Days that are to be compared with the other published days and with late members: their pointer moved, or'
    ' versions of members came late.';
COMMENT ON COLUMN unchecked_day.request IS 'Another one each time the day is entered, also while it is checked.';
"""

LATE_MEMBERS = """
CREATE TABLE late_member (
    topic_id text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    member_id bigint NOT NULL,
    version_at timestamptz NOT NULL,
    PRIMARY KEY (topic_id, partition, "offset")
);
COMMENT ON TABLE late_member IS
    'Versions of members that came after the cut of a kept generation and are no newer than its newest row.';
CREATE TABLE searched_generation (
    generation_id bigint PRIMARY KEY REFERENCES generation ON DELETE CASCADE
);
COMMENT ON TABLE searched_generation IS
    'Generations from whose cut on the members'' topic was searched for late versions, up to its place in the ledger.';
"""

# Generations that are there were searched for what their days showed then: all of them are searched again.
NEWEST = """
ALTER TABLE generation ADD COLUMN newest_version_at timestamptz;
COMMENT ON COLUMN generation.newest_version_at IS
    'The newest version of its rows; 1970-01-01 without rows, null while it is built.';
UPDATE generation SET newest_version_at = 'epoch' WHERE status <> 'building';
DO $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT g.id, c.oid::regclass AS name
                  FROM pg_inherits i
                  JOIN pg_class c ON c.oid = i.inhrelid
                  JOIN generation g ON c.relname = 'board_detail_final_g' || g.id
                 WHERE i.inhparent = 'board_detail_final'::regclass AND NOT i.inhdetachpending
    LOOP
        EXECUTE format('UPDATE generation SET newest_version_at ='
                       ' COALESCE((SELECT max(modified_at) FROM %%s), ''epoch'') WHERE id = %%s', part.name, part.id);
    END LOOP;
END
$$;
INSERT INTO unchecked_day (day) SELECT day FROM day_publication WHERE generation_id IS NOT NULL;
"""

GRANTS = """
GRANT SELECT, INSERT, UPDATE, DELETE ON unchecked_day TO batch;
GRANT SELECT, INSERT, DELETE ON late_member, searched_generation TO batch;
"""


def upgrade() -> None:
    """Make the tables, and fill the new column from the generations' rows."""
    for block in (UNCHECKED, LATE_MEMBERS, NEWEST, GRANTS):
        op.get_bind().exec_driver_sql(block)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
