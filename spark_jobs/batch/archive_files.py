"""Files of the archive: a folder on any file system that Arrow knows, and Parquet files written whole or not at all."""

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

from include.adapters.archive_store import ArchivedFile, Kind
from include.errors import MISCONFIGURED, ConfigurationError, PipelineError

MARKER = "archive.json"
RANGES = b"archive.ranges"  # in a file's footer: topic id, and the offsets it was made from
SUFFIX = ".parquet"
SHOWN = 5


class ArchiveDamaged(PipelineError):
    """The archive does not hold what its catalogue says; see docs/runbooks/archive.md."""

    exit_code = MISCONFIGURED


@dataclass(frozen=True)
class Origin:
    """What a file was made from. It is kept in the file, so that one that was never listed can be judged."""

    topic: str
    topic_id: str
    ends: Mapping[int, int]


@dataclass(frozen=True)
class ArchiveFolder:
    """The archive's folder: a path, or a URI of a store that `pyarrow.fs` knows. Can be sent to tasks."""

    location: str

    def path(self, relative: str) -> str:
        """A file's name for `read_split`: a path, or a URI."""
        if "://" in self.location:
            return f"{self.location.rstrip('/')}/{relative}"
        return str(Path(self.location).absolute() / relative)

    def claim(self, identity: str) -> None:
        """Write down which catalogue the folder belongs to. Raises ConfigurationError when it is another one's.

        Two catalogues on one folder would take each other's files for leftovers.
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
        """Raise ConfigurationError for a folder of this machine when Spark's tasks run on others.

        Whoever mounts the folder on all of them says so with a URI.
        """
        if not master.startswith("local") and "://" not in self.location:
            raise ConfigurationError(
                f"ARCHIVE_DIR={self.location}: a folder of this machine, and the tasks of SPARK_MASTER={master} run on "
                "others; give a store that all see, such as s3://…, or, if this folder is mounted on all of them, "
                f"file://{Path(self.location).absolute()}"
            )

    def require_files(self, listed: Sequence[ArchivedFile]) -> None:
        """Raise ArchiveDamaged unless this process sees each of the files with the size that it is listed with."""
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
        """A file for reading; its pages are held against their checksums. Raises ArchiveDamaged when it is not there.

        The caller closes it.
        """
        files, root = self._open()
        try:
            return pq.ParquetFile(f"{root}/{relative}", filesystem=files, page_checksum_verification=True)
        except (FileNotFoundError, pa.ArrowInvalid) as exc:
            raise ArchiveDamaged(file=relative, reason=type(exc).__name__) from exc

    def batches(self, relative: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The columns of a file, a row group at a time."""
        with self.open(relative) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=list(columns))

    def size(self, relative: str) -> int | None:
        """The file's bytes; None when it is not there."""
        files, root = self._open()
        info = files.get_file_info(f"{root}/{relative}")
        return None if info.type == pa_fs.FileType.NotFound else int(info.size)

    def older_than(self, instant_s: float) -> list[str]:
        """Parquet files last written before the instant, in seconds since 1970; as the catalogue names them."""
        files, root = self._open()
        found = files.get_file_info(pa_fs.FileSelector(root, allow_not_found=True, recursive=True))
        return [
            str(PurePosixPath(info.path).relative_to(root))
            for info in found
            if info.is_file and info.path.endswith(SUFFIX) and info.mtime_ns < instant_s * 1e9
        ]

    def remove(self, relative: str) -> None:
        """Remove a file; nothing happens when it is not there."""
        files, root = self._open()
        try:
            files.delete_file(f"{root}/{relative}")
        except FileNotFoundError:
            return

    def origin(self, relative: str) -> Origin | None:
        """What the file was made from; None when it can't be read: it was not written to its end."""
        try:
            with self.open(relative) as file:
                kept = json.loads((file.schema_arrow.metadata or {}).get(RANGES, b"{}"))
        except ArchiveDamaged:
            return None
        if not kept:
            return None
        return Origin(kept["topic"], kept["topic_id"], {int(p): end for p, end in kept["ends"].items()})

    def writer(self, folder: str, schema: pa.Schema, origin: Origin, key: str | None) -> "FileWriter":
        """A writer of a new file below that folder, under a name that nobody had. `key`: the column of its ids."""
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
    """One Parquet file. It counts for nothing until it is closed and listed in the catalogue."""

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
        """Add the rows, as one row group or in row groups of that many."""
        self._writer.write_table(rows.replace_schema_metadata(self._writer.schema.metadata), row_group or rows.num_rows)
        self.record_count += rows.num_rows
        if self._key is not None:
            self._keys += [key for key in pc.min_max(rows[self._key]).as_py().values() if key is not None]

    def close(self, kind: Kind, day: Any = None) -> ArchivedFile:
        """Finish the file, durably, and describe it for the catalogue."""
        self._writer.close()
        if isinstance(self._files, pa_fs.LocalFileSystem):
            _sync(Path(self._full_path), Path(self._root))
        size = self._files.get_file_info(self._full_path).size
        first, last = (min(self._keys), max(self._keys)) if self._keys else (None, None)
        return ArchivedFile(0, kind, day, self.path, self.record_count, size, first, last)


def _sync(file: Path, root: Path) -> None:
    """Once the catalogue lists it and the topic forgets the records, the file must outlive a power cut."""
    for path in (file, *(parent for parent in file.parents if parent == root or root in parent.parents)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
