"""Schema and statements of the fallback store's file."""

FILE = "fallback.sqlite"
# PRAGMA user_version; a file of another version is refused
VERSION = 1

MAX_ID = 1 << 48  # no store assigns so many ids: a greater one is damage
# of table `message`; a salvage recognizes its rows by it
COLUMNS = 12

# A row that is set aside stays in the table and gets a reason in `refused`. The index has these rows only.
# `loss` has records that will never be sent: lost to damage, or given up. Its `reason` is null until a person
# acknowledges the loss.
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
CREATE TABLE loss (
    id INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    records INTEGER NOT NULL,
    what TEXT NOT NULL,
    reason TEXT,
    acknowledged_at_ms INTEGER
);
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
UPDATE message SET refused = ? WHERE id = ? AND refused IS NULL
RETURNING id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum
"""
GIVE_UP = """
DELETE FROM message WHERE id = ? AND refused IS NOT NULL
RETURNING id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum, refused
"""
REFUSED = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum, refused
FROM message WHERE refused IS NOT NULL AND id > ? ORDER BY id LIMIT ?
"""
WAIT_AGAIN = "UPDATE message SET id = ?, refused = NULL WHERE id = ? RETURNING topic, key, bytes, may_be_in_kafka"
REFUSED_IDS = "SELECT id FROM message WHERE refused IS NOT NULL ORDER BY id"
INSERT_SALVAGED = """
INSERT OR IGNORE INTO message
    (id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum, refused)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SALVAGED = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, checksum, refused
FROM message ORDER BY id
"""
ROWS = "SELECT count(*), coalesce(min(id), 1), coalesce(max(id), 0) FROM message"
BEGIN_IDS = """
INSERT INTO sqlite_sequence (name, seq)
SELECT 'message', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'message')
"""
LOSSES = "SELECT at_ms, records, what, reason, acknowledged_at_ms FROM loss ORDER BY id"
LOST = "SELECT coalesce(sum(records), 0) FROM loss WHERE reason IS NULL"
INSERT_LOSS = "INSERT INTO loss (at_ms, records, what, reason, acknowledged_at_ms) VALUES (?, ?, ?, ?, ?)"
ACKNOWLEDGE = "UPDATE loss SET reason = ?, acknowledged_at_ms = ? WHERE reason IS NULL RETURNING records"
SET_LAST_ID = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'message'"
HEARTBEAT = "INSERT INTO heartbeat (id, at_ms) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at_ms = excluded.at_ms"
# For reconcile, which runs beside the gateway. Includes rows set aside: they are kept, so they are not missing.
OF_TOPIC = "SELECT id, key, value, headers, timestamp_ms FROM message WHERE id > ? AND topic = ? ORDER BY id LIMIT ?"
