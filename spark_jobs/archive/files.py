"""Parquet files of the archive, in a folder on any file system that Arrow supports."""

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from include.archive.store import MARKER, ArchivedFile, Kind
from include.errors import MISCONFIGURED, ConfigurationError, PipelineError

RANGES = b"archive.ranges"  # footer key: topic, topic id and end offsets that the file was made from
SUFFIX = ".parquet"
SHOWN = 5


class ArchiveDamaged(PipelineError):
    """The archive does not hold what its catalogue says; see docs/runbooks/archive.md."""

    exit_code = MISCONFIGURED


@dataclass(frozen=True)
class Origin:
    """Topic and end offsets that a file was made from, kept in its footer.

    They decide whether a file that the catalogue does not list may be removed.
    """

    topic: str
    topic_id: str
    ends: Mapping[int, int]


@dataclass(frozen=True)
class ArchiveFolder:
    """The archive's folder: a path, or a URI that `pyarrow.fs` supports. Can be sent to tasks."""

    location: str

    def path(self, relative: str) -> str:
        """Return the file's absolute path or URI, for `read_split`."""
        if "://" in self.location:
            return f"{self.location.rstrip('/')}/{relative}"
        return str(Path(self.location).absolute() / relative)

    def claim(self, identity: str) -> None:
        """Mark the folder as belonging to this catalogue. Raises ConfigurationError if it belongs to another one.

        Two catalogues sharing a folder would remove each other's files as leftovers.
        """
        files, root = self._open()
        files.create_dir(root, recursive=True)
        marker = f"{root}/{MARKER}"
        if files.get_file_info(marker).type == pa_fs.FileType.NotFound:
            with files.open_output_stream(marker) as stream:
                stream.write(json.dumps({"archive_id": identity}).encode())
        with files.open_input_stream(marker) as stream:
            found = json.loads(stream.read()).get("archive_id")
        if found != identity:
            raise ConfigurationError(
                f"ARCHIVE_DIR={self.location}: belongs to the catalogue {found}, and this database's is {identity}; "
                "set ARCHIVE_DIR to a folder of its own"
            )

    def require_shared(self, master: str) -> None:
        """Raise ConfigurationError if the folder is a local path and Spark's tasks run on other machines.

        For a folder that is mounted on all of them, ARCHIVE_DIR is a file:// URI.
        """
        if not master.startswith("local") and "://" not in self.location:
            raise ConfigurationError(
                f"ARCHIVE_DIR={self.location}: a folder of this machine, and the tasks of SPARK_MASTER={master} run on "
                "others; give a store that all of them see, such as s3://…, or, if this folder is mounted on all of "
                f"them, file://{Path(self.location).absolute()}"
            )

    def require_files(self, listed: Sequence[ArchivedFile]) -> None:
        """Raise ArchiveDamaged unless this process sees every file with its listed size."""
        if not listed:
            return
        files, root = self._open()
        infos = files.get_file_info([f"{root}/{one.path}" for one in listed])
        problems = [
            f"{one.path} is gone" if info.type != pa_fs.FileType.File
            else f"{one.path} has {info.size} bytes, not {one.byte_count}"
            for one, info in zip(listed, infos, strict=True)
            if info.type != pa_fs.FileType.File or info.size != one.byte_count
        ]  # fmt: skip
        if problems:
            raise ArchiveDamaged(
                f"{len(problems)} of {len(listed)} files are not as the catalogue lists them ("
                f"{'; '.join(problems[:SHOWN])}); is ARCHIVE_DIR the folder that they were written to, and is it "
                "mounted here? See docs/runbooks/archive.md",
                archive=self.location,
            )

    def open(self, relative: str) -> pq.ParquetFile:
        """Open a file for reading, with verification of page checksums. The caller closes it.

        Raises ArchiveDamaged if the file does not exist or is not valid Parquet.
        """
        files, root = self._open()
        try:
            return pq.ParquetFile(f"{root}/{relative}", filesystem=files, page_checksum_verification=True)
        except (FileNotFoundError, pa.ArrowInvalid) as exc:
            raise ArchiveDamaged(file=relative, reason=type(exc).__name__) from exc

    def batches(self, relative: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the columns of a file, one row group at a time."""
        with self.open(relative) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=list(columns))

    def size(self, relative: str) -> int | None:
        """Return the file's size in bytes; None if it does not exist."""
        files, root = self._open()
        info = files.get_file_info(f"{root}/{relative}")
        return None if info.type == pa_fs.FileType.NotFound else int(info.size)

    def older_than(self, instant_s: float) -> list[str]:
        """Return the paths of Parquet files last modified before the instant, in seconds since 1970."""
        files, root = self._open()
        found = files.get_file_info(pa_fs.FileSelector(root, allow_not_found=True, recursive=True))
        return [
            str(PurePosixPath(info.path).relative_to(root))
            for info in found
            if info.is_file and info.path.endswith(SUFFIX) and info.mtime_ns < instant_s * 1e9
        ]

    def remove(self, relative: str) -> None:
        """Remove a file, if it exists."""
        files, root = self._open()
        try:
            files.delete_file(f"{root}/{relative}")
        except FileNotFoundError:
            return

    def origin(self, relative: str) -> Origin | None:
        """Return the file's origin from its footer; None if the file is missing, was not finished, or has no origin."""
        try:
            with self.open(relative) as file:
                kept = json.loads((file.schema_arrow.metadata or {}).get(RANGES, b"{}"))
        except ArchiveDamaged:
            return None
        if not kept:
            return None
        return Origin(kept["topic"], kept["topic_id"], {int(p): end for p, end in kept["ends"].items()})

    def writer(self, folder: str, schema: pa.Schema, origin: Origin, key: str | None) -> "FileWriter":
        """Return a writer of a new file with a unique name in that folder. `key` names the column of its ids."""
        files, root = self._open()
        return FileWriter(files, root, f"{folder}/{uuid.uuid4().hex}{SUFFIX}", schema, origin, key)

    def _open(self) -> tuple[pa_fs.FileSystem, str]:
        if "://" not in self.location:
            return pa_fs.LocalFileSystem(), str(Path(self.location).absolute())
        try:
            files, root = pa_fs.FileSystem.from_uri(self.location)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise ConfigurationError(
                f"ARCHIVE_DIR={self.location}: {exc}; give a folder, or a URI such as s3://…"
            ) from exc
        return files, root.rstrip("/")


class FileWriter:
    """Writes one Parquet file. The file is part of the archive only once it is closed and the catalogue lists it."""

    def __init__(
        self, files: pa_fs.FileSystem, root: str, path: str, schema: pa.Schema, origin: Origin, key: str | None
    ) -> None:
        self._files = files
        self._root = root
        self._key = key
        self.path = path
        self.record_count = 0
        self._keys: list[int] = []
        kept = {"topic": origin.topic, "topic_id": origin.topic_id, "ends": dict(origin.ends)}
        self._full_path = f"{root}/{path}"
        files.create_dir(str(PurePosixPath(self._full_path).parent), recursive=True)
        self._writer = pq.ParquetWriter(
            self._full_path,
            schema.with_metadata({RANGES: json.dumps(kept).encode()}),
            filesystem=files,
            compression="zstd",
            write_page_checksum=True,
        )

    def write(self, rows: pa.Table, row_group: int | None = None) -> None:
        """Add the rows as one row group, or in row groups of `row_group` rows."""
        self._writer.write_table(rows.replace_schema_metadata(self._writer.schema.metadata), row_group or rows.num_rows)
        self.record_count += rows.num_rows
        if self._key is not None:
            self._keys += [key for key in pc.min_max(rows[self._key]).as_py().values() if key is not None]

    def close(self, kind: Kind, day: Any = None) -> ArchivedFile:
        """Finish the file, sync it to disk on a local file system, and return its entry for the catalogue."""
        self._writer.close()
        if isinstance(self._files, pa_fs.LocalFileSystem):
            _sync(Path(self._full_path), Path(self._root))
        size = self._files.get_file_info(self._full_path).size
        first, last = (min(self._keys), max(self._keys)) if self._keys else (None, None)
        return ArchivedFile(0, kind, day, self.path, self.record_count, size, first, last)


def _sync(file: Path, root: Path) -> None:
    """Sync the file and its folders: after retention the file is the only copy, so it must survive a power failure."""
    for path in (file, *(parent for parent in file.parents if parent == root or root in parent.parents)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
