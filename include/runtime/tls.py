"""TLS of the gateway: the context of its server, and that of its clients.

Files are read when a context is made, and not with the settings: each process of the pipeline reads all settings, but
only some have these files.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from include.contracts.errors import ConfigurationError
from include.runtime import kinds
from include.runtime.environment_reader import EnvironmentReader, load, require_readable, setting


# fmt: off
@dataclass(frozen=True)
class ServerTls:
    """The gateway's certificate and key. With `client_ca_file` only clients with a certificate may connect."""

    certificate_file: Path = setting("GATEWAY_TLS_CERTIFICATE_FILE", kinds.PATH, None,
        "its certificate with the chain, in PEM: HTTPS alone; empty: HTTP")
    key_file: Path = setting("GATEWAY_TLS_KEY_FILE", kinds.PATH, None, "its key, in PEM, not encrypted")
    client_ca_file: Path | None = setting("GATEWAY_TLS_CLIENT_CA_FILE", kinds.PATH, None,
        "only clients with a certificate of these authorities may connect")
    # fmt: on

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "ServerTls | None":
        """Return the server's files; None if the gateway serves HTTP. Raises ConfigurationError."""
        names = ("GATEWAY_TLS_CERTIFICATE_FILE", "GATEWAY_TLS_KEY_FILE")
        if env.require_pair(*names, "the gateway's"):
            return load(cls, env)
        env.require_unset(["GATEWAY_TLS_CLIENT_CA_FILE"], f" without {' and '.join(names)}; set all or none")
        return None

    def context(self) -> ssl.SSLContext:
        """Return the server's context. Raises ConfigurationError."""
        require_readable("GATEWAY_TLS_CERTIFICATE_FILE", self.certificate_file)
        require_readable("GATEWAY_TLS_KEY_FILE", self.key_file)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.load(context)
        if self.client_ca_file:
            _trust(context, "GATEWAY_TLS_CLIENT_CA_FILE", self.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Read certificate and key again, for new connections. Raises ConfigurationError; the former ones stay then."""
        # first into another context: a certificate without its key would leave this one with neither
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _identify(trial, "GATEWAY_TLS_CERTIFICATE_FILE", self.certificate_file, self.key_file)
        _identify(context, "GATEWAY_TLS_CERTIFICATE_FILE", self.certificate_file, self.key_file)


# fmt: off
@dataclass(frozen=True)
class ClientTls:
    """The authorities that a client trusts, the system's without a file; and its own certificate and key, in PEM."""

    ca_file: Path | None = setting("GATEWAY_CA_FILE", kinds.PATH, None,
        "the authorities that its clients trust, in PEM: tasks and health checks; the system's if empty")
    certificate_file: Path | None = setting("GATEWAY_CLIENT_CERTIFICATE_FILE", kinds.PATH, None, "their certificate")
    key_file: Path | None = setting("GATEWAY_CLIENT_KEY_FILE", kinds.PATH, None, "its key")
    ca_variable: str = "GATEWAY_CA_FILE"  # for messages
    # fmt: on

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "ClientTls":
        """Return the files of the gateway's clients. Raises ConfigurationError."""
        env.require_pair("GATEWAY_CLIENT_CERTIFICATE_FILE", "GATEWAY_CLIENT_KEY_FILE", "a client's")
        return load(cls, env)

    def require_files(self) -> None:
        """Raise ConfigurationError if this process cannot read one of the files."""
        names = (self.ca_variable, "GATEWAY_CLIENT_CERTIFICATE_FILE", "GATEWAY_CLIENT_KEY_FILE")
        for name, path in zip(names, (self.ca_file, self.certificate_file, self.key_file), strict=True):
            if path:
                require_readable(name, path)

    def context(self) -> ssl.SSLContext:
        """Return the client's context. Raises ConfigurationError."""
        self.require_files()
        context = ssl.create_default_context()
        if self.ca_file:
            _trust(context, self.ca_variable, self.ca_file)
        if self.certificate_file and self.key_file:
            _identify(context, "GATEWAY_CLIENT_CERTIFICATE_FILE", self.certificate_file, self.key_file)
        return context


def _trust(context: ssl.SSLContext, name: str, path: Path) -> None:
    require_readable(name, path)
    try:
        context.load_verify_locations(path)
    except OSError as exc:  # ssl.SSLError is one
        raise ConfigurationError(f"{name}={str(path)!r}: no certificates in PEM ({exc}); correct the file") from exc


def _identify(context: ssl.SSLContext, name: str, certificate_file: Path, key_file: Path) -> None:
    try:
        # an encrypted key would be asked for on the terminal
        context.load_cert_chain(certificate_file, key_file, password=_no_password)
    except (OSError, ValueError) as exc:
        raise ConfigurationError(
            f"{name}={str(certificate_file)!r}: it and {key_file} are no certificate in PEM with its key ({exc}); "
            "correct the files"
        ) from exc


def _no_password() -> str:
    raise ValueError("the key is encrypted; decrypt it with `openssl pkey -in KEY -out NEW`")
