"""Parquet files of the archive, in a folder or a bucket of an object store."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from include.archive.catalogue import MARKER, ArchivedFile, Kind
from include.archive.storage import NewObject, Storage, open_storage
from include.contracts.errors import ConfigurationError, Misconfigured
from include.runtime.settings import BatchSettings, S3Connection

RANGES = b"archive.ranges"  # footer key: topic, topic id and end offsets that the file was made from
SUFFIX = ".parquet"
SHOWN = 5


class ArchiveDamaged(Misconfigured):
    """The archive does not hold what its catalogue says; see docs/runbooks/archive.md."""


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
    """The archive's folder, at a path, file:///path or s3://bucket/prefix. Can be sent to tasks.

    Calls raise the errors of `Storage`.
    """

    location: str
    s3: S3Connection = field(default_factory=S3Connection)

    @classmethod
    def of(cls, batch: BatchSettings) -> "ArchiveFolder":
        """Return the folder that the settings name."""
        return cls(batch.archive_dir, batch.archive_s3)

    @property
    def storage(self) -> Storage:
        """The store of the folder's objects."""
        return open_storage(self.location, self.s3)

    def claim(self, identity: str) -> None:
        """Mark the folder as belonging to this catalogue. Raises ConfigurationError if it belongs to another one.

        Two catalogues sharing a folder would remove each other's files as leftovers.
        """
        storage = self.storage
        if not storage.sizes([MARKER]):
            with suppress(FileExistsError):  # of two that claim it at once, the store takes the first
                storage.write(MARKER, json.dumps({"archive_id": identity}).encode())
        found = json.loads(storage.read(MARKER)).get("archive_id")
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
                f"them, {Path(self.location).absolute().as_uri()}"
            )

    def require_files(self, listed: Sequence[ArchivedFile]) -> None:
        """Raise ArchiveDamaged unless this process sees every file with its listed size."""
        if not listed:
            return
        sizes = self.storage.sizes([one.path for one in listed])
        problems = [
            f"{one.path} is gone" if one.path not in sizes
            else f"{one.path} has {sizes[one.path]} bytes, not {one.byte_count}"
            for one in listed if sizes.get(one.path) != one.byte_count
        ]  # fmt: skip
        if problems:
            raise ArchiveDamaged(
                f"{len(problems)} of {len(listed)} files are not as the catalogue lists them ("
                f"{'; '.join(problems[:SHOWN])}); is ARCHIVE_DIR the folder that they were written to, and is it "
                "mounted here? See docs/runbooks/archive.md",
                archive=self.location,
            )

    def have_columns(self, files: Sequence[ArchivedFile], names: Sequence[str]) -> bool:
        """True if all files have these columns. Files of versions from before a column was added lack it."""
        for each in files:
            with self.open(each.path) as file:
                if not set(names) <= set(file.schema_arrow.names):
                    return False
        return True

    def open(self, relative: str) -> pq.ParquetFile:
        """Open a file for reading, with verification of page checksums. The caller closes it.

        Raises ArchiveDamaged if the file does not exist or is not valid Parquet.
        """
        try:
            # columns that lie side by side are read with one call: one request of an object store
            return pq.ParquetFile(self.storage.open(relative), page_checksum_verification=True, pre_buffer=True)
        except (FileNotFoundError, pa.ArrowInvalid) as exc:
            raise ArchiveDamaged(file=relative, reason=type(exc).__name__) from exc

    def batches(self, relative: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield these columns of a file, or all, one row group at a time."""
        with self.open(relative) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=columns)

    def size(self, relative: str) -> int | None:
        """Return the file's size in bytes; None if it does not exist."""
        return self.storage.sizes([relative]).get(relative)

    def older_than(self, instant_s: float) -> list[str]:
        """Return the paths of Parquet files last modified before the instant, in seconds since 1970."""
        found = self.storage.iter_objects()
        return [each.path for each in found if each.path.endswith(SUFFIX) and each.modified_at_s < instant_s]

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, if they exist."""
        self.storage.remove(paths)

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
        path = f"{folder}/{uuid.uuid4().hex}{SUFFIX}"
        return FileWriter(self.storage.create(path), path, schema, origin, key)


class FileWriter:
    """Writes one Parquet file. The file is part of the archive only once it is closed and the catalogue lists it."""

    def __init__(self, new: NewObject, path: str, schema: pa.Schema, origin: Origin, key: str | None) -> None:
        self._new = new
        self._key = key
        self.path = path
        self.record_count = 0
        self._keys: list[int] = []
        kept = {"topic": origin.topic, "topic_id": origin.topic_id, "ends": dict(origin.ends)}
        self._writer = pq.ParquetWriter(
            new.stream,
            schema.with_metadata({RANGES: json.dumps(kept).encode()}),
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
        """Publish the file, which is durable then, and return its entry for the catalogue."""
        with self._new as new:
            self._writer.close()
            byte_count = new.publish()
        first, last = (min(self._keys), max(self._keys)) if self._keys else (None, None)
        return ArchivedFile(0, kind, day, self.path, self.record_count, byte_count, first, last)
