"""The bucket of an archive on an object store, as its administrator sees it, and the rights that the archive needs."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from include.archive.bucket_storage import EXISTS, NOT_IMPLEMENTED, StorageRefused, client_of, code_of, translated
from include.contracts.errors import ConfigurationError
from include.runtime.s3_connection import S3_SCHEME, S3Connection, bucket_and_prefix
from include.runtime.settings import BatchSettings

NONCURRENT_DAYS = 30
UPLOAD_DAYS = 2
_NO_LIFECYCLE = "NoSuchLifecycleConfiguration"
_READABLE_AT_ONCE = frozenset({"STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"})


@dataclass(frozen=True)
class BucketState:
    """`problems` are lifecycle rules to change: each would remove files of the archive, or put them out of reach."""

    conditional_writes: str
    versioning: str
    problems: tuple[str, ...]


class ArchiveBucket:
    """The bucket of s3://bucket/prefix, as its administrator sees it. Raises the errors of `Storage`."""

    def __init__(self, location: str, s3: S3Connection) -> None:
        self._location = location
        self._s3 = s3
        self._bucket, prefix = bucket_and_prefix(location)
        self._prefix = f"{prefix}/"
        self._client = client_of(s3)

    def state(self) -> BucketState:
        """Look at the bucket. Writes an object and removes it."""
        with translated(self._s3, "GetBucketVersioning", self._location):
            versioning = self._client.get_bucket_versioning(Bucket=self._bucket).get("Status", "off")
        problems = tuple(problem for rule in self._rules() for problem in _problems(rule, self._prefix))
        return BucketState(self._conditional_writes(), versioning.lower(), problems)

    def set_lifecycle(self) -> None:
        """Let the store remove noncurrent versions and parts of uploads below the prefix. Other rules stay."""
        rule = {
            "ID": f"archive {self._prefix}",
            "Status": "Enabled",
            "Filter": {"Prefix": self._prefix},
            "NoncurrentVersionExpiration": {"NoncurrentDays": NONCURRENT_DAYS},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UPLOAD_DAYS},
        }
        rules = [*(each for each in self._rules() if each.get("ID") != rule["ID"]), rule]
        with translated(self._s3, "PutLifecycleConfiguration", self._location):
            self._client.put_bucket_lifecycle_configuration(
                Bucket=self._bucket, LifecycleConfiguration={"Rules": rules}
            )

    def _rules(self) -> list[Mapping[str, Any]]:
        try:
            with translated(self._s3, "GetLifecycleConfiguration", self._location):
                found = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
        except StorageRefused as exc:
            if exc.where["code"] not in (_NO_LIFECYCLE, NOT_IMPLEMENTED):
                raise
            return []
        return [*found.get("Rules", ())]

    def _conditional_writes(self) -> str:
        key = f"{self._prefix}probe-{uuid.uuid4().hex}"
        try:
            with translated(self._s3, "PutObject", self._location):
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"1")
                self._client.put_object(Bucket=self._bucket, Key=key, Body=b"2", IfNoneMatch="*")
        except ClientError as exc:
            return "honoured" if code_of(exc) == EXISTS else "unknown"
        except StorageRefused as exc:
            if exc.where["code"] != NOT_IMPLEMENTED:
                raise
            return "not implemented"
        finally:
            with suppress(ClientError), translated(self._s3, "DeleteObject", self._location):
                self._client.delete_object(Bucket=self._bucket, Key=key)
        return "ignored"


def _problems(rule: Mapping[str, Any], prefix: str) -> Iterator[str]:
    found = rule.get("Filter", {})
    of_rule = found.get("Prefix") or found.get("And", {}).get("Prefix") or rule.get("Prefix") or ""
    if rule["Status"] != "Enabled" or not (prefix.startswith(of_rule) or of_rule.startswith(prefix)):
        return
    name = f"rule {rule.get('ID', '')!r} of prefix {of_rule!r}"
    if rule.get("Expiration", {}).keys() & {"Days", "Date"}:
        yield f"{name} expires current objects; let it expire noncurrent versions alone"
    for transition in rule.get("Transitions", ()):
        if transition["StorageClass"] not in _READABLE_AT_ONCE:
            yield f"{name} moves objects to {transition['StorageClass']}, where none can be read; remove the transition"


def bucket_of(batch: BatchSettings) -> ArchiveBucket:
    """Return the bucket of the archive. Raises ConfigurationError if the archive is a folder."""
    if not batch.archive_dir.startswith(S3_SCHEME):
        raise ConfigurationError(f"ARCHIVE_DIR={batch.archive_dir}: not in a bucket; set it to s3://bucket/prefix")
    return ArchiveBucket(batch.archive_dir, batch.archive_s3)


# of the bucket; those that list are limited to the prefix
_OF_LISTS = ("s3:ListBucket", "s3:ListBucketVersions")
_OF_UPLOADS = ("s3:ListBucketMultipartUploads",)
_OF_OBJECTS = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:DeleteObjectVersion",  # of a forgotten person, in a bucket with versioning
    "s3:AbortMultipartUpload",
)


def bucket_policy(location: str, principal: str = "") -> dict[str, Any]:
    """Return the policy for the archive at s3://bucket/prefix.

    With a principal, such as an ARN, it is a bucket's policy, else one to attach to a user or role. Raises
    ConfigurationError if the archive is a folder.
    """
    if not location.startswith(S3_SCHEME):
        raise ConfigurationError(f"ARCHIVE_DIR={location}: a folder needs no policy; set it to s3://bucket/prefix")
    bucket, prefix = bucket_and_prefix(location)
    who = {"Principal": {"AWS": [principal]}} if principal else {}
    of_prefix = {"StringLike": {"s3:prefix": [f"{prefix}/*"]}}
    allow = {"Effect": "Allow", **who}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": "List", **allow, "Action": [*_OF_LISTS], "Resource": [_arn(bucket)], "Condition": of_prefix},
            {"Sid": "Uploads", **allow, "Action": [*_OF_UPLOADS], "Resource": [_arn(bucket)]},
            {"Sid": "Objects", **allow, "Action": [*_OF_OBJECTS], "Resource": [_arn(f"{bucket}/{prefix}/*")]},
        ],
    }


def _arn(resource: str) -> str:
    return f"arn:aws:s3:::{resource}"
