"""The port to the store of the archive's files, and its adapter for a folder of this machine, or mounted on all.

Objects are written once, whole, and never changed. Paths are relative, with slashes. The other adapter is a bucket of
an object store (`bucket.py`); both pass one suite of tests. The port has no rename, and no caller relies on the order
in which a listing shows new objects: an object is part of the archive only once the catalogue in PostgreSQL lists its
path.
"""

import errno
import hashlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from include.contracts.errors import ConfigurationError, Transient
from include.runtime.durable_files import sync_file, sync_folder
from include.runtime.settings import FILE_SCHEME, S3_SCHEME, S3Connection

PART = ".part"  # at the end of the name of a file that is not whole


class StorageUnavailable(Transient):
    """The object store does not answer, or asks to slow down."""


class StorageDenied(ConfigurationError):
    """The object store denies an operation; `pipeline archive rights` prints the needed rights."""


class VersionsKept(ConfigurationError):
    """The bucket keeps earlier versions of removed objects; see docs/runbooks/forget.md."""


@dataclass(frozen=True)
class StoredObject:
    """An object: its path, size, and time of the last change in seconds since 1970."""

    path: str
    byte_count: int
    modified_at_s: float


class NewObject(ABC):
    """An object that is being written to `stream`. It exists once `publish` has returned.

    If the process dies or a call raises, the object is absent or whole. As a context manager, it is discarded at the
    end of the block unless it was published.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    @abstractmethod
    def publish(self) -> int:
        """Make the bytes durable under the path, and return their number.

        Raises FileExistsError if the path has an object with other content, which stays as it is.
        """

    def discard(self) -> None:
        """Forget the bytes. Nothing happens after `publish`."""
        with suppress(OSError):
            self.stream.close()

    def __enter__(self) -> "NewObject":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.discard()


class Storage(ABC):
    """A store of objects. Calls raise StorageUnavailable, StorageDenied and ConfigurationError; a folder, OSError."""

    @abstractmethod
    def create(self, path: str) -> NewObject:
        """Begin a new object."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """Return a file for reading at any position, as `pyarrow.parquet` takes it. Raises FileNotFoundError."""

    @abstractmethod
    def checksum(self, path: str) -> str:
        """Return the SHA-256 of an object's content, in hexadecimal digits. Raises FileNotFoundError."""

    @abstractmethod
    def sizes(self, paths: Iterable[str]) -> Mapping[str, int]:
        """Return the sizes in bytes of those of the objects that exist."""

    @abstractmethod
    def iter_objects(self) -> Iterator[StoredObject]:
        """Yield all objects, in no order."""

    @abstractmethod
    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects; those that do not exist are left out."""

    @abstractmethod
    def remove_unfinished(self, before_s: float) -> int:
        """Remove what writers that died have left behind before the instant, in seconds since 1970; returns how many.

        Parts of multipart uploads that somebody else began below the prefix are removed too.
        """

    @abstractmethod
    def remove_versions(self) -> int:
        """Remove all versions that are not current, and marks of deletion; returns the number of the versions.

        Afterwards the store is asked again, in more than one way. Raises VersionsKept if some remain.
        """

    def write(self, path: str, content: bytes) -> None:
        """Write a whole object. Raises FileExistsError as `NewObject.publish`."""
        with self.create(path) as new:
            new.stream.write(content)
            new.publish()

    def read(self, path: str) -> bytes:
        """Return the content of an object. Raises FileNotFoundError."""
        with self.open(path) as file:
            return bytes(file.read())


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # of some network file systems


class FolderStorage(Storage):
    """Files below a folder, which is made when the first object is written."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()

    def create(self, path: str) -> NewObject:
        """Begin a file beside its later place, under a hidden name."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return _NewFile(self._root, target)

    def open(self, path: str) -> Any:
        """Return Arrow's file of the path."""
        return pa_fs.LocalFileSystem().open_input_file(str(self._root / path))

    def checksum(self, path: str) -> str:
        """Read the file and return its SHA-256."""
        return _checksum(self._root / path)

    def sizes(self, paths: Iterable[str]) -> Mapping[str, int]:
        """Look at each file."""
        wanted = list(paths)
        found = pa_fs.LocalFileSystem().get_file_info([str(self._root / path) for path in wanted])
        return {path: info.size for path, info in zip(wanted, found, strict=True) if info.is_file}

    def iter_objects(self) -> Iterator[StoredObject]:
        """Yield the files that are whole."""
        return (each for each in self._iter_files() if not each.path.endswith(PART))

    def remove(self, paths: Iterable[str]) -> None:
        """Remove the files; folders stay."""
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def remove_unfinished(self, before_s: float) -> int:
        """Remove files of writers that died."""
        old = [each.path for each in self._iter_files() if each.path.endswith(PART) and each.modified_at_s < before_s]
        self.remove(old)
        return len(old)

    def remove_versions(self) -> int:
        """Return 0: a folder keeps no versions. Snapshots of its file system are not seen."""
        return 0

    def _iter_files(self) -> Iterator[StoredObject]:
        for info in pa_fs.LocalFileSystem().get_file_info(
            pa_fs.FileSelector(str(self._root), allow_not_found=True, recursive=True)
        ):
            if info.is_file:
                path = str(Path(info.path).relative_to(self._root))
                yield StoredObject(path, info.size, info.mtime_ns / 1e9)


class _NewFile(NewObject):
    """A file under a hidden name; a link, which replaces no file, gives it its own name."""

    def __init__(self, root: Path, target: Path) -> None:
        self._root = root
        self._target = target
        self._part = target.with_name(f".{target.name}.{uuid.uuid4().hex}{PART}")
        super().__init__(self._part.open("xb"))

    def publish(self) -> int:
        """Sync the file and its folders, too: after retention it is the only copy, and a power failure may come."""
        sync_file(self.stream)
        byte_count = os.fstat(self.stream.fileno()).st_size
        self.stream.close()
        self._link()
        self._part.unlink(missing_ok=True)
        for folder in self._target.parents:
            if folder == self._root or self._root in folder.parents:
                sync_folder(folder)
        return byte_count

    def _link(self) -> None:
        try:
            os.link(self._part, self._target)
        except FileExistsError:
            if _checksum(self._part) != _checksum(self._target):
                raise
        except OSError as exc:
            if exc.errno not in _NO_LINKS or self._target.exists():
                raise
            self._part.rename(self._target)  # names are unique, so that nothing is replaced

    def discard(self) -> None:
        """Close and remove the file."""
        super().discard()
        self._part.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_storage(location: str, s3: S3Connection) -> Storage:
    """Return the store at a path, file:///path or s3://bucket/prefix. Connects to nothing."""
    if location.startswith(S3_SCHEME):
        from include.archive.bucket import BucketStorage  # most archives are folders

        return BucketStorage(location, s3)

    is_uri = location.startswith(FILE_SCHEME)
    return FolderStorage(unquote(location.removeprefix(FILE_SCHEME)) if is_uri else location)
