"""The connection to Kafka: the brokers' addresses, and the encryption and authentication of connections.

One group of settings for librdkafka and for Kafka's Java clients, which Spark uses.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from include.contracts.errors import ConfigurationError
from include.runtime.environment_reader import EnvironmentReader

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

# setting of librdkafka, by which the connection of Airflow has it → variable
VARIABLES = {
    "bootstrap.servers": "KAFKA_BOOTSTRAP_SERVERS",
    "security.protocol": "KAFKA_SECURITY_PROTOCOL",
    "ssl.ca.location": "KAFKA_SSL_CA_FILE",
    "ssl.certificate.location": "KAFKA_SSL_CERTIFICATE_FILE",
    "ssl.key.location": "KAFKA_SSL_KEY_FILE",
    "ssl.key.password": "KAFKA_SSL_KEY_PASSWORD",
    "sasl.mechanism": "KAFKA_SASL_MECHANISM",
    "sasl.username": "KAFKA_SASL_USERNAME",
    "sasl.password": "KAFKA_SASL_PASSWORD",
    "sasl.oauthbearer.token.endpoint.url": "KAFKA_SASL_TOKEN_URL",
    "sasl.oauthbearer.scope": "KAFKA_SASL_SCOPE",
}
SECRETS = ("KAFKA_SASL_PASSWORD", "KAFKA_SSL_KEY_PASSWORD")
_PROTOCOLS: dict[str, Protocol] = {name: name for name in get_args(Protocol)}
_MECHANISMS: dict[str, Mechanism] = {name: name for name in get_args(Mechanism)}
_SECURITY = "org.apache.kafka.common.security"
_LOGIN_MODULES: dict[Mechanism, str] = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLER = f"{_SECURITY}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"


@dataclass(frozen=True)
class Tls:
    """The files of TLS, in PEM. Without a CA file the system's certificates are trusted."""

    ca_file: Path | None = None
    certificate_file: Path | None = None  # the client's, with its chain
    key_file: Path | None = None
    key_password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Sasl:
    """The client's login. For OAUTHBEARER it is the id and secret with which `token_url` gives a token."""

    mechanism: Mechanism
    username: str
    password: str = field(repr=False)
    token_url: str = ""
    scope: str = ""


@dataclass(frozen=True)
class KafkaConnection:
    """The addresses of the brokers, host:port with commas, and the security of the connections; None means none."""

    bootstrap_servers: str
    tls: Tls | None = None
    sasl: Sasl | None = None

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "KafkaConnection":
        """Read the settings of Kafka's connections. Raises ConfigurationError."""
        protocol = env.choice("KAFKA_SECURITY_PROTOCOL", _PROTOCOLS, "PLAINTEXT")
        has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
        return cls(
            env.addresses("KAFKA_BOOTSTRAP_SERVERS"),
            _read_tls(env) if _is_wanted(env, _TLS_VARIABLES, has_tls, "SSL or SASL_SSL") else None,
            _read_sasl(env) if _is_wanted(env, _SASL_VARIABLES, has_sasl, "SASL_SSL or SASL_PLAINTEXT") else None,
        )

    @property
    def protocol(self) -> Protocol:
        """Kafka's name of the security protocol."""
        if self.sasl:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    @property
    def principal(self) -> str:
        """The client's name in Kafka's ACLs, with the brokers' default rules. Reads the client's certificate."""
        if self.sasl:
            return f"User:{self.sasl.username}"
        if self.tls and self.tls.certificate_file:
            from cryptography import x509

            certificate = x509.load_pem_x509_certificate(_content(self.tls.certificate_file).encode())
            return f"User:{certificate.subject.rfc4514_string()}"
        return "User:ANONYMOUS"

    def librdkafka(self) -> dict[str, object]:
        """Return the settings of a client of librdkafka. Files are read when the client is made."""
        settings: dict[str, object] = {"bootstrap.servers": self.bootstrap_servers}
        if self.protocol != "PLAINTEXT":
            settings["security.protocol"] = self.protocol
        if self.tls:
            files = {
                "ssl.ca.location": self.tls.ca_file,
                "ssl.certificate.location": self.tls.certificate_file,
                "ssl.key.location": self.tls.key_file,
            }
            settings |= {name: str(path) for name, path in files.items() if path}
            if self.tls.key_password:
                settings["ssl.key.password"] = self.tls.key_password
        if self.sasl and self.sasl.mechanism == "OAUTHBEARER":
            settings |= {
                "sasl.mechanism": self.sasl.mechanism,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": self.sasl.username,
                "sasl.oauthbearer.client.secret": self.sasl.password,
                "sasl.oauthbearer.token.endpoint.url": self.sasl.token_url,
            }
            if self.sasl.scope:
                settings["sasl.oauthbearer.scope"] = self.sasl.scope
        elif self.sasl:
            settings |= {
                "sasl.mechanism": self.sasl.mechanism,
                "sasl.username": self.sasl.username,
                "sasl.password": self.sasl.password,
            }
        return settings

    def java(self) -> dict[str, str]:
        """Return the settings of Kafka's Java clients. Reads the client's certificate and key.

        Raises ConfigurationError if they cannot be read.
        """
        settings = {"bootstrap.servers": self.bootstrap_servers}
        if self.protocol != "PLAINTEXT":
            settings["security.protocol"] = self.protocol
        if self.tls and self.tls.ca_file:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.tls.ca_file)}
        if self.tls and self.tls.certificate_file and self.tls.key_file:
            chain, key = _java_identity(self.tls.certificate_file, self.tls.key_file, self.tls.key_password)
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": chain,
                "ssl.keystore.key": key,
            }
        if self.sasl:
            settings |= {"sasl.mechanism": self.sasl.mechanism, "sasl.jaas.config": _jaas(self.sasl)}
            if self.sasl.mechanism == "OAUTHBEARER":
                settings |= {
                    "sasl.login.callback.handler.class": _OAUTH_HANDLER,
                    "sasl.oauthbearer.token.endpoint.url": self.sasl.token_url,
                }
        return settings

    def spark(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source and sink. Raises the errors of `java`."""
        return {f"kafka.{name}": value for name, value in self.java().items()}


_TLS_VARIABLES = (
    *(name for name in VARIABLES.values() if name.startswith("KAFKA_SSL_")),
    "KAFKA_SSL_KEY_PASSWORD_FILE",
)
_SASL_VARIABLES = (
    *(name for name in VARIABLES.values() if name.startswith("KAFKA_SASL_")),
    "KAFKA_SASL_PASSWORD_FILE",
)


def _is_wanted(env: EnvironmentReader, names: tuple[str, ...], is_wanted: bool, protocols: str) -> bool:
    """True if the protocol needs the variables. Raises ConfigurationError for one that is set in vain."""
    for name in names:
        if env.is_set(name) and not is_wanted:
            raise ConfigurationError(
                f"{env.variable(name)} is set, but KAFKA_SECURITY_PROTOCOL does not use it; set that to {protocols}, "
                "or remove it"
            )
    return is_wanted


def _read_tls(env: EnvironmentReader) -> Tls:
    pair = env.certificate_and_key("KAFKA_SSL_CERTIFICATE_FILE", "KAFKA_SSL_KEY_FILE", "a client's")
    certificate_file, key_file = pair
    password = env.secret("KAFKA_SSL_KEY_PASSWORD", "")
    if certificate_file and key_file:
        _java_identity(certificate_file, key_file, password)
    return Tls(env.readable_file("KAFKA_SSL_CA_FILE"), certificate_file, key_file, password)


def _read_sasl(env: EnvironmentReader) -> Sasl:
    mechanism = env.choice("KAFKA_SASL_MECHANISM", _MECHANISMS)
    is_oauth = mechanism == "OAUTHBEARER"
    for name in ("KAFKA_SASL_TOKEN_URL", "KAFKA_SASL_SCOPE"):
        if env.text(name, "") and not is_oauth:
            raise ConfigurationError(
                f"{env.variable(name)} is set, but KAFKA_SASL_MECHANISM={mechanism} does not use it; remove it"
            )
    return Sasl(
        mechanism,
        env.text("KAFKA_SASL_USERNAME"),
        env.secret("KAFKA_SASL_PASSWORD"),
        env.urls("KAFKA_SASL_TOKEN_URL") if is_oauth else "",
        env.text("KAFKA_SASL_SCOPE", ""),
    )


def _jaas(sasl: Sasl) -> str:
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
def _java_identity(certificate_file: Path, key_file: Path, password: str) -> tuple[str, str]:
    return _content(certificate_file), _java_key(key_file, password)


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
