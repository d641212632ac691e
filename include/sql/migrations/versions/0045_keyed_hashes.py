"""Hashes of builds depend on a number that analysts cannot read: with the rest of a row they told its masked values."""

from alembic import op

revision = "0045"
down_revision = "0044"

SEED = """
INSERT INTO pipeline_setting (name, value)
VALUES ('hash_seed', ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint::text),
       ('hash_seed_since', (SELECT COALESCE(max(id), 0) + 1 FROM generation)::text);
CREATE FUNCTION hash_seed(generation_id bigint) RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT CASE WHEN since.value::bigint <= generation_id THEN seed.value::bigint ELSE 0 END
          FROM pipeline_setting seed, pipeline_setting since
         WHERE seed.name = 'hash_seed' AND since.name = 'hash_seed_since');
COMMENT ON FUNCTION hash_seed IS
    'The secret that content_hash of a build is computed with; 0 for builds of a release that had none.';
REVOKE EXECUTE ON FUNCTION hash_seed FROM PUBLIC;
GRANT EXECUTE ON FUNCTION hash_seed TO batch;
UPDATE day_certificate SET value = 'withheld' WHERE term = 'content_hash';
"""


def upgrade() -> None:
    """Make the secret; hashes without it are taken out of certificates, which analysts read."""
    op.execute(SEED)


def downgrade() -> None:
    """Refuse, as every migration here."""
    raise NotImplementedError("migrations go forward only; restore a backup instead")
