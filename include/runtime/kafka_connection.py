"""The connection to Kafka: the brokers' addresses, and the encryption and authentication of connections.

One group of settings for librdkafka and for Kafka's Java clients, which Spark uses.
"""

from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from include.contracts.errors import ConfigurationError
from include.runtime import kinds
from include.runtime.environment_reader import (
    EnvironmentReader,
    group,
    keyed,
    load,
    secrets_of,
    server_setting,
    settings_of,
)

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES: dict[Mechanism, str] = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLER = f"{_SECURITY}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"


# fmt: off
@dataclass(frozen=True)
class Tls:
    """The files of TLS, in PEM. Without a CA file the system's certificates are trusted."""

    ca_file: Path | None = server_setting("KAFKA_SSL_CA_FILE", kinds.PATH, None,
        "the authorities that signed the brokers' certificates, in PEM; the system's if empty", key="ssl.ca.location")
    certificate_file: Path | None = server_setting("KAFKA_SSL_CERTIFICATE_FILE", kinds.PATH, None,
        "the client's certificate with its chain, in PEM, for mTLS", key="ssl.certificate.location")
    key_file: Path | None = server_setting("KAFKA_SSL_KEY_FILE", kinds.PATH, None, "its key", key="ssl.key.location")
    key_password: str = server_setting("KAFKA_SSL_KEY_PASSWORD", kinds.SECRET, "", "of the key", key="ssl.key.password")


@dataclass(frozen=True)
class Sasl:
    """The client's login. For OAUTHBEARER it is the id and secret with which `token_url` gives a token."""

    mechanism: Mechanism | Literal[""] = server_setting("KAFKA_SASL_MECHANISM", kinds.choice(*get_args(Mechanism)), "",
        "how clients log in; required with SASL", key="sasl.mechanism")
    username: str = server_setting("KAFKA_SASL_USERNAME", kinds.TEXT, "",
        "the login; for OAUTHBEARER the client's id", key="sasl.username")
    password: str = server_setting("KAFKA_SASL_PASSWORD", kinds.SECRET, "",
        "its password; for OAUTHBEARER the client's secret", key="sasl.password")
    token_url: str = server_setting("KAFKA_SASL_TOKEN_URL", kinds.URLS, "",
        "OAUTHBEARER only: the endpoint that gives tokens", key="sasl.oauthbearer.token.endpoint.url")
    scope: str = server_setting("KAFKA_SASL_SCOPE", kinds.TEXT, "",
        "OAUTHBEARER only: the scope of the tokens", key="sasl.oauthbearer.scope")


@dataclass(frozen=True)
class KafkaConnection:
    """The addresses of the brokers, and the security of the connections, as `protocol` says."""

    bootstrap_servers: str = server_setting("KAFKA_BOOTSTRAP_SERVERS", kinds.ADDRESSES, MISSING, "the brokers",
        env="127.0.0.1:${KAFKA_PORT}", key="bootstrap.servers")
    protocol: Protocol = server_setting("KAFKA_SECURITY_PROTOCOL", kinds.choice(*get_args(Protocol)), "PLAINTEXT",
        "encryption and login of connections; a setting that it does not use is refused", key="security.protocol")
    tls: Tls = group(Tls, default=Tls())
    sasl: Sasl = group(Sasl, default=Sasl())
    # fmt: on

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "KafkaConnection":
        """Read the settings of Kafka's connections. Raises ConfigurationError."""
        found = load(cls, env)
        has_tls, has_sasl = found.protocol.endswith("SSL"), found.protocol.startswith("SASL")
        for of, is_used, wanted in ((Tls, has_tls, "SSL or SASL_SSL"), (Sasl, has_sasl, "SASL_SSL or SASL_PLAINTEXT")):
            unused = [] if is_used else [each.variable for each in settings_of(of)]
            why = f", but KAFKA_SECURITY_PROTOCOL does not use it; set that to {wanted}, or remove it"
            env.require_unset(unused, why)
        env.require_readable("KAFKA_SSL_CA_FILE", "KAFKA_SSL_CERTIFICATE_FILE", "KAFKA_SSL_KEY_FILE")
        if env.require_pair("KAFKA_SSL_CERTIFICATE_FILE", "KAFKA_SSL_KEY_FILE", "a client's"):
            _java_identity(found.tls)
        if has_sasl:
            for name in ("KAFKA_SASL_MECHANISM", "KAFKA_SASL_USERNAME"):
                env.value(name, kinds.TEXT)
            env.value("KAFKA_SASL_PASSWORD", kinds.SECRET)
            if found.sasl.mechanism == "OAUTHBEARER":
                env.value("KAFKA_SASL_TOKEN_URL", kinds.URLS)
            else:
                why = f", but KAFKA_SASL_MECHANISM={found.sasl.mechanism} does not use it; remove it"
                env.require_unset(["KAFKA_SASL_TOKEN_URL", "KAFKA_SASL_SCOPE"], why)
        return found

    @property
    def principal(self) -> str:
        """The client's name in Kafka's ACLs, with the brokers' default rules. Reads the client's certificate."""
        if self.sasl.mechanism:
            return f"User:{self.sasl.username}"
        if self.tls.certificate_file:
            from cryptography import x509

            certificate = x509.load_pem_x509_certificate(_content(self.tls.certificate_file).encode())
            return f"User:{certificate.subject.rfc4514_string()}"
        return "User:ANONYMOUS"

    def librdkafka(self) -> dict[str, object]:
        """Return the settings of a client of librdkafka. Files are read when the client is made."""
        settings: dict[str, object] = {name: str(value) for name, value in keyed(self).items() if value}
        if self.protocol == "PLAINTEXT":
            del settings["security.protocol"]
        if self.sasl.mechanism == "OAUTHBEARER":
            settings["sasl.oauthbearer.method"] = "oidc"
            settings["sasl.oauthbearer.client.id"] = settings.pop("sasl.username")
            settings["sasl.oauthbearer.client.secret"] = settings.pop("sasl.password")
        return settings

    def java(self) -> dict[str, str]:
        """Return the settings of Kafka's Java clients. Reads the client's certificate and key.

        Raises ConfigurationError if they cannot be read.
        """
        settings = {"bootstrap.servers": self.bootstrap_servers}
        if self.protocol != "PLAINTEXT":
            settings["security.protocol"] = self.protocol
        if self.tls.ca_file:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.tls.ca_file)}
        if self.tls.certificate_file:
            chain, key = _java_identity(self.tls)
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": chain,
                "ssl.keystore.key": key,
            }
        if self.sasl.mechanism:
            settings |= {"sasl.mechanism": self.sasl.mechanism, "sasl.jaas.config": _jaas(self.sasl)}
            if self.sasl.mechanism == "OAUTHBEARER":
                settings |= {
                    "sasl.login.callback.handler.class": _OAUTH_HANDLER,
                    "sasl.oauthbearer.token.endpoint.url": self.sasl.token_url,
                }
        return settings

    def spark(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source. Raises the errors of `java`."""
        return {f"kafka.{name}": value for name, value in self.java().items()}


# setting of librdkafka, by which the connection of Airflow has it → variable
VARIABLES = {each.key: each.variable for each in settings_of(KafkaConnection)}
SECRETS = secrets_of(KafkaConnection)


def _jaas(sasl: Sasl) -> str:
    assert sasl.mechanism
    names = ("clientId", "clientSecret") if sasl.mechanism == "OAUTHBEARER" else ("username", "password")
    options = dict(zip(names, (sasl.username, sasl.password), strict=True))
    if sasl.scope:
        options["scope"] = sasl.scope
    text = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
    return f"{_LOGIN_MODULES[sasl.mechanism]} required {text};"


def _quoted(value: str) -> str:
    """The value as a string of Java's StreamTokenizer, which reads the login module's options."""
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, escaped)
    return f'"{value}"'


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeError) as exc:
        raise ConfigurationError(f"{path} cannot be read as PEM: {exc}; correct the file or its rights") from exc


@cache  # the stream asks with each batch, and a process has one connection
def _java_identity(tls: Tls) -> tuple[str, str]:
    assert tls.certificate_file
    assert tls.key_file
    return _content(tls.certificate_file), _java_key(tls.key_file, tls.key_password)


def _java_key(path: Path, password: str) -> str:
    """Return the key in PKCS #8, not encrypted: Java reads no other form, and not all that OpenSSL encrypts."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(_content(path).encode(), password.encode() if password else None)
    except (ValueError, TypeError) as exc:  # TypeError: a password without an encrypted key, or the other way around
        raise ConfigurationError(
            f"{path} is not a key in PEM that KAFKA_SSL_KEY_PASSWORD opens: {exc}; correct the file or the password"
        ) from exc
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode("ascii")
