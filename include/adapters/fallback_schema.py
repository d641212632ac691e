"""The file of the fallback store: its table and its statements, all of them."""

FILE = "fallback.sqlite"
# user_version: a file of an unknown version is refused, not guessed at
VERSION = 2

# One table: a row that is set aside keeps its place and gets its reason. The index holds those rows only.
CREATE = """
CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    key BLOB,
    value BLOB,
    headers BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    error TEXT NOT NULL,
    may_be_in_kafka INTEGER NOT NULL,
    kept_at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    checksum INTEGER,
    refused TEXT
);
CREATE INDEX message_refused ON message (id) WHERE refused IS NOT NULL;
CREATE TABLE heartbeat (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
"""
# Version 1 had a table of its own for what was set aside, and no checksums.
MIGRATE_FROM_1 = """
ALTER TABLE message ADD COLUMN checksum INTEGER;
ALTER TABLE message ADD COLUMN refused TEXT;
CREATE INDEX message_refused ON message (id) WHERE refused IS NOT NULL;
INSERT INTO message
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, NULL, reason
FROM refused;
DROP TABLE refused;
"""

INSERT = """
INSERT INTO message (id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
LAST_ID = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'message'), 0)"
OLDEST = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum
FROM message
WHERE id > ? AND refused IS NULL AND topic NOT IN (SELECT value FROM json_each(?))
ORDER BY id LIMIT ?
"""
CONTENTS = "SELECT topic, key, bytes, may_be_in_kafka, refused IS NOT NULL FROM message"
OLDEST_KEPT_AT = "SELECT kept_at_ms FROM message WHERE id > ? AND refused IS NULL ORDER BY id LIMIT 1"
DELETE = """
DELETE FROM message WHERE id BETWEEN ? AND ? AND refused IS NULL RETURNING topic, key, bytes, may_be_in_kafka
"""
SET_ASIDE = """
UPDATE message SET refused = ? WHERE id = ? AND refused IS NULL RETURNING topic, key, bytes, may_be_in_kafka
"""
REFUSED = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum, refused
FROM message WHERE refused IS NOT NULL AND id > ? ORDER BY id LIMIT ?
"""
WAIT_AGAIN = "UPDATE message SET id = ?, refused = NULL WHERE id = ? RETURNING topic, key, bytes, may_be_in_kafka"
FIRST_ID = "SELECT min(id) FROM message"
BETWEEN = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum
FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?
"""
SET_LAST_ID = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'message'"
BEAT = "INSERT INTO heartbeat (id, at_ms) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at_ms = excluded.at_ms"
# For a reader beside the gateway. Those set aside too: either way it is known, and kept, what the topic does not have.
OF_TOPIC = "SELECT id, key, value FROM message WHERE id > ? AND topic = ? ORDER BY id LIMIT ?"
