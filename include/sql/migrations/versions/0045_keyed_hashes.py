"""Hashes of builds depend on a number that analysts cannot read: with the rest of a row they told its masked values."""

from alembic import op

revision = "0045"
down_revision = "0044"

SEED = """
INSERT INTO pipeline_setting (name, value)
VALUES ('hash_seed', ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint::text);
CREATE FUNCTION hash_seed() RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT value::bigint FROM pipeline_setting WHERE name = 'hash_seed');
COMMENT ON FUNCTION hash_seed IS 'The secret of the database that content_hash is computed with.';
REVOKE EXECUTE ON FUNCTION hash_seed FROM PUBLIC;
GRANT EXECUTE ON FUNCTION hash_seed TO batch;
UPDATE generation SET content_hash = NULL WHERE content_hash IS NOT NULL;
UPDATE day_publication SET content_hash = NULL WHERE content_hash IS NOT NULL;
UPDATE day_certificate SET value = 'withheld' WHERE term = 'content_hash';
"""


def upgrade() -> None:
    """Make the secret, and forget hashes that were computed without: a certificate computes it again."""
    op.execute(SEED)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
