"""The settings of Kafka's connections, and how each client gets them."""

import re

import pytest

from include.contracts.errors import ConfigurationError
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.kafka_connection import KafkaConnection
from tests.support.certificates import Authority

SERVERS = {"KAFKA_BOOTSTRAP_SERVERS": "kafka-1:9092,kafka-2:9092"}
SERVERS_ONLY = {"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}
SASL = {"KAFKA_SASL_MECHANISM": "PLAIN", "KAFKA_SASL_USERNAME": "user", "KAFKA_SASL_PASSWORD": "secret"}


def connection(**variables):
    return KafkaConnection.from_environment(EnvironmentReader({**SERVERS, **variables}))


def test_nothing_but_addresses_is_what_clients_always_had():
    kafka = connection()
    assert kafka.librdkafka() == kafka.java() == SERVERS_ONLY
    assert kafka.spark() == {"kafka.bootstrap.servers": "kafka-1:9092,kafka-2:9092"}


def test_tls_without_files_trusts_the_certificates_of_the_system():
    kafka = connection(KAFKA_SECURITY_PROTOCOL="SSL")
    assert kafka.librdkafka() == kafka.java() == {**SERVERS_ONLY, "security.protocol": "SSL"}


def test_oauth_by_the_credentials_of_a_client():
    kafka = connection(
        KAFKA_SECURITY_PROTOCOL="SASL_SSL", KAFKA_SASL_MECHANISM="OAUTHBEARER", KAFKA_SASL_USERNAME="id",
        KAFKA_SASL_PASSWORD="secret", KAFKA_SASL_TOKEN_URL="https://login/token", KAFKA_SASL_SCOPE="kafka",
    )  # fmt: skip
    assert kafka.librdkafka() == {
        **SERVERS_ONLY,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "id",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.token.endpoint.url": "https://login/token",
        "sasl.oauthbearer.scope": "kafka",
    }
    java = kafka.java()
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert java["sasl.jaas.config"].endswith(
        'OAuthBearerLoginModule required clientId="id" clientSecret="secret" scope="kafka";'
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"KAFKA_SECURITY_PROTOCOL": "TLS"},
            "KAFKA_SECURITY_PROTOCOL='TLS': not one of PLAINTEXT, SSL, SASL",
        ),
        (SASL, "KAFKA_SASL_MECHANISM is set, but KAFKA_SECURITY_PROTOCOL does not use it; set that to SASL_SSL or"),
        (
            {"KAFKA_SSL_CA_FILE": "/ca"},
            "KAFKA_SSL_CA_FILE is set, but KAFKA_SECURITY_PROTOCOL does not use it; set",
        ),
        ({"KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}, "KAFKA_SASL_MECHANISM is not set"),
        ({**SASL, "KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SASL_PASSWORD": ""}, "KAFKA_SASL_PASSWORD is not set"),
        (
            {**SASL, "KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SASL_SCOPE": "a"},
            "KAFKA_SASL_MECHANISM=PLAIN",
        ),
        ({"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SSL_CA_FILE": "/none"}, "KAFKA_SSL_CA_FILE='/none': cannot be read"),
    ],
)
def test_a_wrong_group_is_refused(variables, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        connection(**variables)


def test_a_certificate_and_its_key_go_together(tmp_path):
    client = Authority(tmp_path).issue("client")
    with pytest.raises(ConfigurationError, match="KAFKA_SSL_KEY_FILE is not set; a client's certificate and its key"):
        connection(KAFKA_SECURITY_PROTOCOL="SSL", KAFKA_SSL_CERTIFICATE_FILE=str(client.certificate_file))


def test_a_key_that_cannot_be_read_is_refused_at_the_start(tmp_path):
    client, old = Authority(tmp_path).issue("client"), tmp_path / "old.key"
    old.write_text("-----BEGIN EC PRIVATE KEY-----\n-----END EC PRIVATE KEY-----\n")
    with pytest.raises(ConfigurationError, match=r"old.key is not a key in PEM that KAFKA_SSL_KEY_PASSWORD opens"):
        connection(
            KAFKA_SECURITY_PROTOCOL="SSL",
            KAFKA_SSL_CERTIFICATE_FILE=str(client.certificate_file),
            KAFKA_SSL_KEY_FILE=str(old),
        )


def test_secrets_are_in_no_text_of_it():
    kafka = connection(**SASL, KAFKA_SECURITY_PROTOCOL="SASL_SSL")
    assert "secret" not in repr(kafka)
