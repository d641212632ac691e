"""A process that the stack starts is given the secrets that it uses, and its files are for nobody else."""

import pytest

from stack import env_file, jobs
from stack.env_file import without_secrets

OF_MIGRATE = {
    *("POSTGRES_SUPERUSER_PASSWORD", "DB_OWNER_PASSWORD", "DB_GATEWAY_PASSWORD"),
    *("DB_STREAM_PASSWORD", "DB_BATCH_PASSWORD", "DB_INTEGRITY_PASSWORD"),
    "DB_ANALYST_PASSWORD",
}


@pytest.mark.parametrize(("job", "wanted"), [("topics", set()), ("migrate", OF_MIGRATE)])
def test_a_job_gets_the_secrets_it_uses(tmp_path, job, wanted):
    env_file.ensure(tmp_path / ".env")
    settings = env_file.read(tmp_path / ".env")
    given = jobs.variables_of(job, settings)
    assert given.keys() - without_secrets(given).keys() == wanted
    assert given["KAFKA_BOOTSTRAP_SERVERS"] == settings["KAFKA_BOOTSTRAP_SERVERS"]
