"""The port to the store of the archive's files: objects that are written once, whole, and never changed.

Paths are relative, with slashes. The adapters are a folder and a bucket of an object store; both pass one suite of
tests. The port has no rename, and no caller relies on the order in which a listing shows new objects: an object is part
of the archive only once the catalogue in PostgreSQL lists its path.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from include.contracts.errors import ConfigurationError, Transient

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
