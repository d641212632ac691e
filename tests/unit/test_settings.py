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
        ("GATEWAY_DELIVERY_TIMEOUT_S", "soon", "not a number"),
        ("PIPELINE_TIMEZONE", "Asia/Soul", "no such time zone"),
        ("PIPELINE_TIMEZONE", "Asia", "no such time zone"),
        ("KAFKA_RETENTION_DAYS", "-1", "not a whole number from 1"),
        ("KAFKA_RETENTION_DAYS", "1000000000", "not a whole number from 1"),
        ("DATABASE_PORT", "99999", "not a whole number from 1 to 65535"),
        ("STREAM_TRIGGER_INTERVAL_S", "nan", "not a number of seconds from 0"),
        ("STREAM_TRIGGER_INTERVAL_S", "inf", "not a number of seconds from 0"),
        ("STREAM_DRIVER_MEMORY", "2 g", "not a memory size; .* such as 768m or 2g"),
        ("REBUILD_DRIVER_MEMORY", "2048", "not a memory size"),
        ("KAFKA_BOOTSTRAP_SERVERS", "broker", "not host:port"),
        ("KAFKA_BOOTSTRAP_SERVERS", "a:9092,b:99999", "not host:port"),
        ("DATABASE_HOST", "d b", "not the name or address of a host"),
        ("GATEWAY_URL", "gateway:18080", "not http://host:port"),
        ("GATEWAY_URL", "http://[", "not http://host:port"),
        ("SPARK_MASTER", "locally", "not a Spark master"),
        ("ARCHIVE_DIR", "a\tb", "non-printable"),
        ("GATEWAY_TOKEN", "tökén", "not allowed in HTTP headers"),
        ("KAFKA_MIN_INSYNC_REPLICAS", "4", "no record could be written with KAFKA_REPLICATION_FACTOR=3"),
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
