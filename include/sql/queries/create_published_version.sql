CREATE TEMPORARY TABLE IF NOT EXISTS published_version (
    id bigint NOT NULL,
    modified_at timestamptz -- null: a tombstone
)
