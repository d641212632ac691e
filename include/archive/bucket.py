"""The archive's store in a bucket of an object store that speaks S3's protocol, the bucket's check, and its policy.

Errors of the client and of the store become the pipeline's.
"""

import hashlib
import io
import os
import string
import tempfile
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
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

from include.archive.storage import (
    PART,
    NewObject,
    Storage,
    StorageDenied,
    StorageUnavailable,
    StoredObject,
    VersionsKept,
)
from include.contracts.errors import ConfigurationError, PipelineError
from include.runtime.retry import retry_transient
from include.runtime.settings import S3_SCHEME, BatchSettings, S3Connection, bucket_and_prefix

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


FOOTER_BYTES = 64 << 10  # Arrow reads as much at the end of a Parquet file
MAX_OBJECT_BYTES = 5 << 30  # of one PUT, in S3's protocol
READ_MAX_WAIT_S = 60.0
_CHECKSUM = "sha256"  # metadata of objects
_KEYS_PER_CALL = 1000
_NAME_CHARACTERS = f"{string.ascii_letters}{string.digits}-._=/"  # of the archive's paths
_LISTED_FROM = 200  # for so many objects a listing has fewer calls than a HEAD of each
_THREADS = 8

_Version = tuple[str, str]  # key and id


class ObjectTooLarge(PipelineError):
    """An object of more than 5 GiB cannot be written whole; lower REBUILD_ROWS_PER_TASK."""


@dataclass
class _VersionListing:
    """Noncurrent versions and marks of deletion of one question, and the paths to ask for next."""

    versions: set[_Version] = field(default_factory=set)
    marks: set[_Version] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the versions of an answer of ListObjectVersions."""
        old = (each for each in answer.get("Versions", ()) if not each["IsLatest"])
        self.versions.update((each["Key"], each["VersionId"]) for each in old)
        self.marks.update((each["Key"], each["VersionId"]) for each in answer.get("DeleteMarkers", ()))


class _OfBucket:
    """The client, the bucket and the prefix of a location s3://bucket/prefix."""

    def __init__(self, location: str, s3: S3Connection) -> None:
        self._location = location
        self._s3 = s3
        self._bucket, prefix = bucket_and_prefix(location)
        self._prefix = f"{prefix}/"
        self._client = client_of(s3)


class BucketStorage(_OfBucket, Storage):
    """Objects below the prefix of s3://bucket/prefix.

    An object is written by one PUT with its checksum, under the condition that the key is new, and so is whole or
    absent. No multipart upload is ever begun, which a writer that dies would leave behind.
    """

    def create(self, path: str) -> NewObject:
        """Begin an object in a temporary file without a name, which goes with the process."""
        return _NewObject(tempfile.TemporaryFile(dir=_scratch_folder()), partial(self._put, path))

    def open(self, path: str) -> Any:
        """Return a file that reads ranges of the object."""
        return pa.PythonFile(_ObjectReader(partial(self._get, path)), mode="r")

    def checksum(self, path: str) -> str:
        """Return the checksum that the writer kept with the object; without one, that of its content."""
        head = self._head(path)
        if head is None:
            raise FileNotFoundError(f"{self._location}/{path}")
        kept = head.get("Metadata", {}).get(_CHECKSUM)
        return str(kept) if kept else hashlib.sha256(self.read(path)).hexdigest()

    def sizes(self, paths: Iterable[str]) -> Mapping[str, int]:
        """Ask for each object; among many, only for those that a listing does not show."""
        wanted = list(paths)
        found: dict[str, int] = {}
        if len(wanted) >= _LISTED_FROM:
            listed = {each.path: each.byte_count for each in self.iter_objects()}
            found = {path: listed[path] for path in wanted if path in listed}
        missing = [path for path in wanted if path not in found]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="archive-sizes") as threads:
            for path, size in zip(missing, threads.map(self._size, missing), strict=True):
                if size is not None:
                    found[path] = size
        return found

    def iter_objects(self) -> Iterator[StoredObject]:
        """Yield the objects of each page of the listing."""
        return (each for each in self._iter_objects() if not each.path.endswith(PART))

    def _iter_objects(self, path: str = "") -> Iterator[StoredObject]:
        for page in self._pages("list_objects_v2", path):
            for each in page.get("Contents", ()):
                yield StoredObject(self._path(each["Key"]), each["Size"], each["LastModified"].timestamp())

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects. A bucket with versioning keeps a version of each."""
        failed = self._delete([{"Key": self._key(path)} for path in paths])
        if failed:
            raise error_of(failed[0]["Code"], "DeleteObject", self._location, address_of(self._s3))

    def remove_unfinished(self, before_s: float) -> int:
        """Abort multipart uploads that others began below the prefix; remove parts that came with a copied folder."""
        parts = [
            each.path for each in self._iter_objects() if each.path.endswith(PART) and each.modified_at_s < before_s
        ]
        self.remove(parts)
        old = [
            each
            for page in self._pages("list_multipart_uploads")
            for each in page.get("Uploads", ())
            if each["Initiated"].timestamp() < before_s
        ]
        for each in old:
            with suppress(ClientError), self._translated("AbortMultipartUpload"):  # somebody else was faster
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=each["Key"], UploadId=each["UploadId"])
        return len(parts) + len(old)

    def remove_versions(self) -> int:
        """Remove noncurrent versions; once none is left, marks of deletion, which would uncover such a version.

        Two listings that divide the keys in different ways, `_by_folder` and `_by_name`, find the versions. Versions
        that one of them shows are removed, and afterwards neither may show any: a version that a listing loses is
        found and verified by the other one. Pages of all keys are not used, since a store may lose keys between two of
        them, again and again: SeaweedFS 4.48 loses folder `board-detail` if a page ends in folder `board`, because
        `board-detail/` sorts before `board/` and the folders' names do not.
        """
        versions, marks = self._old_versions()
        if not versions and not marks:
            return 0
        try:
            failed = self._delete(versions)
        except StorageDenied as exc:
            raise VersionsKept(archive=self._location, versions=len(versions), code="AccessDenied") from exc
        left, marks = self._old_versions()
        if failed or left:
            raise VersionsKept(archive=self._location, versions=len(left), code=failed[0]["Code"] if failed else "none")
        self._delete(marks)
        return len(versions)

    def _old_versions(self) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """Return noncurrent versions and marks of deletion that either listing shows."""
        versions: set[_Version] = set()
        marks: set[_Version] = set()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="archive-versions") as threads:
            for listed in (self._by_folder, self._by_name):
                paths = [""]
                while paths:
                    answers, paths = [*threads.map(listed, paths)], []
                    for each in answers:
                        versions |= each.versions
                        marks |= each.marks
                        paths += each.paths
        return [_request_of(each) for each in versions], [_request_of(each) for each in marks]

    def _by_folder(self, path: str) -> _VersionListing:
        """List a folder's own versions and its folders, in pages.

        Folders that have only noncurrent versions are among them. It can lose a folder if there are more than a
        thousand beside it.
        """
        found = _VersionListing()
        for page in self._pages("list_object_versions", path, Delimiter="/"):
            found.add(page)
            found.paths += [self._path(each["Prefix"]) for each in page.get("CommonPrefixes", ())]
        return found

    def _by_name(self, path: str) -> _VersionListing:
        """List the versions whose path begins like this; if there is a second page, list by each next character.

        The first page is all that is read, so that nothing is lost between pages. It can lose a version whose path has
        a character that paths of the archive do not have.
        """
        found = _VersionListing()
        page = next(self._pages("list_object_versions", path), {})
        found.add(page)
        if page.get("IsTruncated"):
            found.paths += [path + character for character in _NAME_CHARACTERS]
        return found

    def _put(self, path: str, file: Any) -> int:
        byte_count: int = file.seek(0, io.SEEK_END)
        if byte_count > MAX_OBJECT_BYTES:
            raise ObjectTooLarge(file=path, bytes=byte_count)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        file.seek(0)
        checksum = digest.hexdigest()
        request = {
            "Bucket": self._bucket,
            "Key": self._key(path),
            "Body": file,
            "ChecksumSHA256": b64encode(digest.digest()).decode(),  # the store compares it with what arrived
            "Metadata": {_CHECKSUM: checksum},
        }
        try:
            with self._translated("PutObject"):
                self._put_new(request)
        except ClientError as exc:  # the key exists: perhaps the answer to an earlier try was lost
            if code_of(exc) != EXISTS or self.checksum(path) != checksum:
                raise FileExistsError(f"{self._location}/{path} has other content") from exc
        return byte_count

    def _put_new(self, request: dict[str, Any]) -> None:
        try:
            self._client.put_object(**request, IfNoneMatch="*")
        except ClientError as exc:
            if code_of(exc) != NOT_IMPLEMENTED:
                raise
            request["Body"].seek(0)
            self._client.put_object(**request)  # without the condition: paths are unique, and the catalogue decides

    def _get(self, path: str, range_: str) -> tuple[bytes, int]:
        """Return the bytes of a range, and the size of the object."""

        def get() -> tuple[bytes, int]:
            try:
                with self._translated("GetObject"):
                    answer = self._client.get_object(Bucket=self._bucket, Key=self._key(path), Range=range_)
                    if "ContentRange" not in answer:
                        raise StorageRefused(operation="GetObject with a range", archive=self._location, code="ignored")
                    return answer["Body"].read(), int(answer["ContentRange"].rpartition("/")[2])
            except ClientError as exc:
                if code_of(exc) == EMPTY:
                    return b"", 0
                raise FileNotFoundError(f"{self._location}/{path}") from exc
            except StorageDenied as exc:  # AWS's answer, too, for a key that is not there
                if self._head(path) is None:
                    raise FileNotFoundError(f"{self._location}/{path}") from exc
                raise

        return retry_transient(get, READ_MAX_WAIT_S)  # the client repeats requests, but not the reading of a body

    def _size(self, path: str) -> int | None:
        head = self._head(path)
        return int(head["ContentLength"]) if head else None

    def _head(self, path: str) -> Mapping[str, Any] | None:
        try:
            with self._translated("HeadObject"):
                found: Mapping[str, Any] = self._client.head_object(Bucket=self._bucket, Key=self._key(path))
                return found
        except ClientError as exc:
            if code_of(exc) not in NO_SUCH_KEY:
                raise StorageRefused(operation="HeadObject", archive=self._location, code=code_of(exc)) from exc
            return None
        except StorageDenied:  # AWS's answer for a key that is not there, if the right to list ends at the prefix
            if any(each.path == path for each in self._iter_objects(path)):
                raise
            return None

    def _delete(self, objects: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
        """Delete objects or versions; returns the store's errors."""
        failed: list[Mapping[str, str]] = []
        for first in range(0, len(objects), _KEYS_PER_CALL):
            batch = {"Objects": list(objects[first : first + _KEYS_PER_CALL]), "Quiet": True}
            with self._translated("DeleteObjects"):
                failed += self._client.delete_objects(Bucket=self._bucket, Delete=batch).get("Errors", [])
        return failed

    def _pages(self, operation: str, path: str = "", **options: str) -> Iterator[Mapping[str, Any]]:
        try:
            with self._translated(operation):
                pages = self._client.get_paginator(operation)
                yield from pages.paginate(Bucket=self._bucket, Prefix=self._key(path), **options)
        except StorageRefused as exc:  # a store that has no versions or uploads in parts has none to list
            if operation == "list_objects_v2" or exc.where["code"] != NOT_IMPLEMENTED:
                raise

    def _translated(self, operation: str) -> AbstractContextManager[None]:
        return translated(self._s3, operation, self._location)

    def _key(self, path: str) -> str:
        return self._prefix + path

    def _path(self, key: str) -> str:
        return key.removeprefix(self._prefix)


class _NewObject(NewObject):
    """An object in a local file until it is published."""

    def __init__(self, stream: IO[bytes], put: Callable[[IO[bytes]], int]) -> None:
        super().__init__(stream)
        self._put = put

    def publish(self) -> int:
        """Send the object with one request."""
        self.stream.flush()
        byte_count = self._put(self.stream)
        self.stream.close()
        return byte_count


class _ObjectReader(io.RawIOBase):
    """A file for reading: a request for each range that is read, and one for the end of the object when it is opened.

    `get` returns the bytes of a range and the object's size.
    """

    def __init__(self, get: Callable[[str], tuple[bytes, int]]) -> None:
        self._get = get
        self._end, self._size = get(f"bytes=-{FOOTER_BYTES}")
        self._position = 0

    def seekable(self) -> bool:
        """True."""
        return True

    def readable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position and return it."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the bytes up to the end of the object, or `size` of them."""
        first, last = self._position, self._size
        if size is not None and size >= 0:
            last = min(first + size, last)
        if first >= last:
            return b""
        end_at = self._size - len(self._end)
        data = (
            self._end[first - end_at : last - end_at] if first >= end_at else self._get(f"bytes={first}-{last - 1}")[0]
        )
        self._position += len(data)
        return data


def _scratch_folder() -> str | None:
    """Return the folder of Spark's temporary files: the system's may be a small one in memory. None: the system's."""
    named = (os.environ.get(name, "").partition(",")[0] for name in ("SPARK_LOCAL_DIRS", "SPARK_SCRATCH_DIR"))
    return next((folder for folder in named if folder and Path(folder).is_dir()), None)


def _request_of(version: _Version) -> dict[str, str]:
    key, version_id = version
    return {"Key": key, "VersionId": version_id}


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


class ArchiveBucket(_OfBucket):
    """The bucket of s3://bucket/prefix, as its administrator sees it. Raises the errors of `Storage`."""

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
