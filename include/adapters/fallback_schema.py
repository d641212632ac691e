"""The file of the fallback store: its tables and its statements, all of them."""

# user_version: a file of another version is refused, not guessed at
VERSION = 1

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
    bytes INTEGER NOT NULL
);
CREATE TABLE refused (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    key BLOB,
    value BLOB,
    headers BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    error TEXT NOT NULL,
    may_be_in_kafka INTEGER NOT NULL,
    kept_at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE heartbeat (id INTEGER PRIMARY KEY CHECK (id = 1), at_ms INTEGER NOT NULL);
"""

INSERT = """
INSERT INTO message (id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
LAST_ID = """
SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'message'), 0),
    coalesce((SELECT max(id) FROM refused), 0))
"""
OLDEST = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms
FROM message WHERE id > ? ORDER BY id LIMIT ?
"""
KEYS = "SELECT topic, key FROM message"
TOTALS = """
SELECT (SELECT count(*) FROM message),
       (SELECT count(*) FROM message WHERE may_be_in_kafka),
       (SELECT count(*) FROM refused),
       (SELECT coalesce(sum(bytes), 0) FROM message) + (SELECT coalesce(sum(bytes), 0) FROM refused)
"""
OLDEST_KEPT_AT = "SELECT kept_at_ms FROM message ORDER BY id LIMIT 1"
SELECT_ONE = "SELECT topic, key, bytes, may_be_in_kafka FROM message WHERE id = ?"
DELETE = "DELETE FROM message WHERE id = ?"
SET_ASIDE = """
INSERT INTO refused (id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, reason)
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes, ?
FROM message WHERE id = ?
"""
REFUSED = """
SELECT id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, bytes
FROM refused ORDER BY id LIMIT ?
"""
DELETE_REFUSED = "DELETE FROM refused WHERE id = ?"
BEAT = "INSERT INTO heartbeat (id, at_ms) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at_ms = excluded.at_ms"
