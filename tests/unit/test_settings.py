"""Settings: read once, checked when read, secrets neither shown nor silently missing."""

import pytest

from include.errors import ConfigurationError
from include.settings import Settings

LEAST = {"KAFKA_BOOTSTRAP_SERVERS": "k:9092", "DATABASE_HOST": "db"}


def test_the_least_that_is_needed():
    settings = Settings.from_environment(LEAST)
    assert settings.timezone == "Asia/Seoul"
    assert settings.kafka.replication_factor == 3
    assert settings.kafka.min_insync_replicas == 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("KAFKA_BOOTSTRAP_SERVERS", "", "not set"),
        ("DATABASE_PORT", "five", "not a whole number"),
        ("GATEWAY_DEADLINE_S", "soon", "not a number"),
        ("PIPELINE_TIMEZONE", "Asia/Soul", "no such time zone"),
    ],
)
def test_a_wrong_value_is_named(name, value, says):
    with pytest.raises(ConfigurationError, match=f"{name}.*{says}"):
        Settings.from_environment({**LEAST, name: value})


def test_a_missing_password_is_named_when_it_is_used():
    settings = Settings.from_environment(LEAST)
    with pytest.raises(ConfigurationError, match="DB_BATCH_PASSWORD"):
        settings.database.password("batch")


def test_secrets_are_not_shown():
    text = repr(Settings.from_environment({**LEAST, "DB_BATCH_PASSWORD": "hush", "GATEWAY_TOKEN": "hush"}))
    assert "hush" not in text
