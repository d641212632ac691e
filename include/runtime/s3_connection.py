"""The connection to an object store that speaks S3's protocol, and the location of the archive in it."""

import re
from dataclasses import dataclass
from pathlib import Path

from include.contracts.errors import ConfigurationError
from include.runtime import kinds
from include.runtime.environment_reader import EnvironmentReader, load, secrets_of, server_setting

S3_SCHEME = "s3://"
FILE_SCHEME = "file://"
DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)  # characters that need no escape in keys, URLs and policies


def _is_location(text: str) -> bool:
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme == "s3":
        bucket, prefix = bucket_and_prefix(text)
        if not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/"):
            raise kinds.Unfit(
                "not s3://bucket/prefix; the bucket has 3 to 63 lower-case letters, digits, dots and hyphens, and the "
                "prefix letters, digits and the characters . _ = - /"
            )
    elif scheme == "file" and not text.startswith(f"{FILE_SCHEME}/"):
        raise kinds.Unfit("not file:///path with an absolute path")
    elif scheme not in ("", "file"):
        raise kinds.Unfit("no store is known by this scheme; give a folder, file:///path or s3://bucket/prefix")
    return True


LOCATION = kinds.Kind("a folder, file:///path or s3://bucket/prefix", _is_location, str, is_path=True)
_ENDPOINT = kinds.Kind(
    "http://host:port or https://host:port; the bucket belongs into ARCHIVE_DIR", kinds.is_endpoint, str
)
_REGION = kinds.pattern("[a-z0-9-]{1,63}", f"the name of a region such as {DEFAULT_REGION}")


# fmt: off
@dataclass(frozen=True)
class S3Connection:
    """Address, login and TLS of an object store. Can be sent to tasks.

    Without an access key, the SDK's own sources are used: variables, a profile or the role of the machine. The key's
    secret is needed only by processes that use the archive, and so is the CA file, which is read when it is used.
    """

    endpoint: str = server_setting("ARCHIVE_S3_ENDPOINT", _ENDPOINT, "", "its address; empty: AWS's")
    region: str = server_setting("ARCHIVE_S3_REGION", _REGION, DEFAULT_REGION, "the bucket's region")
    access_key_id: str = server_setting("ARCHIVE_S3_ACCESS_KEY_ID", kinds.TEXT, "",
        "the login; without it that of AWS's SDK, such as the machine's role")
    secret_access_key: str = server_setting("ARCHIVE_S3_SECRET_ACCESS_KEY", kinds.TOKEN, "", "its secret")
    ca_file: Path | None = server_setting("ARCHIVE_S3_CA_FILE", kinds.PATH, None,
        "the authorities of the store's certificate, in PEM; those of the SDK if empty. Workers need the file too")
    verifies_tls: bool = server_setting("ARCHIVE_S3_TLS_VERIFY", kinds.SWITCH, True,
        "off: the store's certificate is not verified. For tests")
    # fmt: on

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "S3Connection":
        """Read the settings of the archive's object store. Raises ConfigurationError."""
        found = load(cls, env)
        if found.ca_file and (not found.verifies_tls or found.endpoint.startswith("http://")):
            why = "the endpoint is not https" if found.verifies_tls else "ARCHIVE_S3_TLS_VERIFY is off"
            raise ConfigurationError(
                f"{env.variable('ARCHIVE_S3_CA_FILE')}={found.ca_file}: no effect, since {why}; remove it"
            )
        return found


SECRETS = secrets_of(S3Connection)


def bucket_and_prefix(location: str) -> tuple[str, str]:
    """Return the bucket and the prefix of s3://bucket/prefix, the prefix without slashes around it."""
    bucket, _, prefix = location.removeprefix(S3_SCHEME).partition("/")
    return bucket, prefix.rstrip("/")
