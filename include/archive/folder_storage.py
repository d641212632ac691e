"""The archive's store in a folder: of this machine, or mounted on all of them."""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs

from include.archive.storage import PART, NewObject, Storage, StoredObject

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
        self.stream.flush()
        os.fsync(self.stream.fileno())
        byte_count = os.fstat(self.stream.fileno()).st_size
        self.stream.close()
        self._link()
        self._part.unlink(missing_ok=True)
        for folder in self._target.parents:
            if folder == self._root or self._root in folder.parents:
                _sync(folder)
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


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
