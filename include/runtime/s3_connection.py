"""The connection to an object store that speaks S3's protocol, and the location of the archive in it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from include.contracts.errors import ConfigurationError
from include.runtime.environment_reader import EnvironmentReader, without_login

S3_SCHEME = "s3://"
FILE_SCHEME = "file://"
SECRETS = ("ARCHIVE_S3_SECRET_ACCESS_KEY",)
DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)  # characters that need no escape in keys, URLs and policies
_REGION = re.compile(r"[a-z0-9-]{1,63}")


@dataclass(frozen=True)
class S3Connection:
    """Address, login and TLS of an object store. Can be sent to tasks.

    Without an endpoint it is AWS's of the region. Without an access key, the SDK's own sources are used: variables, a
    profile or the role of the machine. The key's secret is needed only by processes that use the archive.
    """

    endpoint: str = ""
    region: str = DEFAULT_REGION
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    ca_file: Path | None = None
    verifies_tls: bool = True

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "S3Connection":
        """Read the settings of the archive's object store. Raises ConfigurationError."""
        endpoint = env.text("ARCHIVE_S3_ENDPOINT", "")
        if endpoint and not _is_endpoint(endpoint):
            raise ConfigurationError(
                f"{env.variable('ARCHIVE_S3_ENDPOINT')}={without_login(endpoint)!r}: not http://host:port or "
                "https://host:port; the bucket belongs into ARCHIVE_DIR"
            )
        region = env.text("ARCHIVE_S3_REGION", DEFAULT_REGION)
        if not _REGION.fullmatch(region):
            raise ConfigurationError(
                f"{env.variable('ARCHIVE_S3_REGION')}={region!r}: not the name of a region such as {DEFAULT_REGION}"
            )
        ca_file = env.path("ARCHIVE_S3_CA_FILE")  # read when it is used: not every process uses the archive
        verifies_tls = env.choice("ARCHIVE_S3_TLS_VERIFY", {"on": True, "off": False}, "on")
        if ca_file and (not verifies_tls or endpoint.startswith("http://")):
            why = "the endpoint is not https" if verifies_tls else "ARCHIVE_S3_TLS_VERIFY is off"
            raise ConfigurationError(
                f"{env.variable('ARCHIVE_S3_CA_FILE')}={ca_file}: no effect, since {why}; remove it"
            )
        return cls(
            endpoint,
            region,
            env.text("ARCHIVE_S3_ACCESS_KEY_ID", ""),
            env.token("ARCHIVE_S3_SECRET_ACCESS_KEY"),
            ca_file,
            verifies_tls,
        )


def read_location(env: EnvironmentReader) -> str:
    """Return ARCHIVE_DIR: a path, file:///path or s3://bucket/prefix. Raises ConfigurationError for anything else."""
    location = env.text("ARCHIVE_DIR", ".state/archive")
    scheme = location.partition("://")[0] if "://" in location else ""
    name = env.variable("ARCHIVE_DIR")
    if scheme == "s3":
        bucket, prefix = bucket_and_prefix(location)
        if not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/"):
            raise ConfigurationError(
                f"{name}={without_login(location)!r}: not s3://bucket/prefix; the bucket has 3 to 63 lower-case "
                "letters, digits, dots and hyphens, and the prefix letters, digits and the characters . _ = - /"
            )
    elif scheme == "file" and not location.startswith(f"{FILE_SCHEME}/"):
        raise ConfigurationError(f"{name}={without_login(location)!r}: not file:///path with an absolute path")
    elif scheme not in ("", "file"):
        raise ConfigurationError(
            f"{name}={without_login(location)!r}: no store is known by this scheme; give a folder, file:///path or s3://bucket/prefix"
        )
    return location


def bucket_and_prefix(location: str) -> tuple[str, str]:
    """Return the bucket and the prefix of s3://bucket/prefix, the prefix without slashes around it."""
    bucket, _, prefix = location.removeprefix(S3_SCHEME).partition("/")
    return bucket, prefix.rstrip("/")


def _is_endpoint(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid port
        return False
    return is_address and parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
