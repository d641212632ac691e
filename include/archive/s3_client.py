"""The client of an object store, and the pipeline's errors for those of the client and of the store."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.session import get_session

from include.archive.storage import StorageDenied, StorageUnavailable
from include.contracts.errors import ConfigurationError, PipelineError
from include.runtime.s3_connection import S3Connection

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30  # without a byte
TRIES = 6  # with pauses of up to 1, 2, 4, 8 and 16 s
CONNECTIONS = 16
_TRY_LATER = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
NO_SUCH_UPLOAD = "NoSuchUpload"
NO_SUCH_KEY = ("NoSuchKey", "404")  # an answer to HEAD has no body, and so no code
EXISTS, EMPTY = "PreconditionFailed", "InvalidRange"
LEFT_TO_CALLERS = (*NO_SUCH_KEY, NO_SUCH_UPLOAD, EXISTS, EMPTY)
NOT_IMPLEMENTED = "NotImplemented"
_SETTINGS = {
    "InvalidAccessKeyId": ("ARCHIVE_S3_ACCESS_KEY_ID", "the store does not know this key"),
    "SignatureDoesNotMatch": ("ARCHIVE_S3_SECRET_ACCESS_KEY", "it does not belong to ARCHIVE_S3_ACCESS_KEY_ID"),
    "ExpiredToken": ("ARCHIVE_S3_ACCESS_KEY_ID", "the login has expired"),
    "NoSuchBucket": ("ARCHIVE_DIR", "the bucket does not exist; create it"),
    "InvalidBucketName": ("ARCHIVE_DIR", "the store does not allow this name of a bucket"),
    "AuthorizationHeaderMalformed": ("ARCHIVE_S3_REGION", "not the region of the bucket"),
    "PermanentRedirect": ("ARCHIVE_S3_REGION", "not the region of the bucket, or ARCHIVE_S3_ENDPOINT not its address"),
    "IllegalLocationConstraintException": ("ARCHIVE_S3_REGION", "not the region of the bucket"),
}


class StorageRefused(PipelineError):
    """The object store refuses an operation."""


@cache  # a client has a pool of connections and takes 0.1 s to make
def client_of(s3: S3Connection) -> Any:
    """Return the process's client of a store. Connects to nothing. Raises ConfigurationError.

    A half access key and a CA file that cannot be read are refused.
    """
    if bool(s3.access_key_id) != bool(s3.secret_access_key):
        missing = "ARCHIVE_S3_SECRET_ACCESS_KEY" if s3.access_key_id else "ARCHIVE_S3_ACCESS_KEY_ID"
        raise ConfigurationError(f"{missing} is not set; the id of an access key and its secret go together")
    if s3.ca_file and not os.access(s3.ca_file, os.R_OK):
        raise ConfigurationError(
            f"ARCHIVE_S3_CA_FILE={s3.ca_file}: cannot be read; correct the path or the file's rights, on workers too"
        )
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        retries={"mode": "standard", "total_max_attempts": TRIES},
        s3={"addressing_style": "path"} if s3.endpoint else {},
    )
    return get_session().create_client(
        "s3",
        region_name=s3.region,
        endpoint_url=s3.endpoint or None,
        aws_access_key_id=s3.access_key_id or None,
        aws_secret_access_key=s3.secret_access_key or None,
        verify=str(s3.ca_file) if s3.ca_file else s3.verifies_tls,
        config=config,
    )


def address_of(s3: S3Connection) -> str:
    """Return the store's address for messages."""
    return s3.endpoint or f"AWS, region {s3.region}"


@contextmanager
def translated(s3: S3Connection, operation: str, location: str) -> Iterator[None]:
    """Raise the pipeline's errors in the block: with the setting that is wrong, or the right that is missing.

    ClientError is left to callers if its code is one of LEFT_TO_CALLERS.
    """
    where = address_of(s3)
    try:
        yield
    except ClientError as exc:
        if code_of(exc) in LEFT_TO_CALLERS:
            raise
        status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise error_of(code_of(exc), operation, location, where, status) from exc
    except SSLError as exc:
        raise ConfigurationError(
            f"ARCHIVE_S3_CA_FILE={s3.ca_file or ''}: the certificate of {where} cannot be verified; give the PEM file "
            "of its authorities"
        ) from exc
    except (NoCredentialsError, PartialCredentialsError) as exc:
        raise ConfigurationError(
            "ARCHIVE_S3_ACCESS_KEY_ID is not set, and neither variables, profile nor machine have a login of AWS"
        ) from exc
    except (NoConnection, HTTPClientError, IncompleteReadError, FlexibleChecksumError) as exc:
        raise StorageUnavailable(store=where, operation=operation, reason=type(exc).__name__) from exc
    except BotoCoreError as exc:
        raise StorageRefused(operation=operation, archive=location, reason=type(exc).__name__) from exc


def code_of(exc: ClientError) -> str:
    """Return the error code of a store's answer, such as NoSuchKey; for an answer without a body the HTTP status."""
    return str(exc.response.get("Error", {}).get("Code", ""))


def error_of(code: str, operation: str, location: str, where: str, status: int = 0) -> PipelineError:
    """Return the pipeline's error for an error code and an HTTP status of the store."""
    if code in _SETTINGS:
        variable, why = _SETTINGS[code]
        shown = f"{variable}={location}" if variable == "ARCHIVE_DIR" else variable
        return ConfigurationError(f"{shown}: {why} ({where} answers {code})")
    if status == 403 or code == "AccessDenied":
        return StorageDenied(operation=operation, archive=location, store=where, code=code)
    if status in _TRY_LATER or code in ("SlowDown", "RequestTimeout"):
        return StorageUnavailable(store=where, operation=operation, code=code or status)
    return StorageRefused(operation=operation, archive=location, store=where, code=code or status)
