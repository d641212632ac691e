"""The newest version of each key of a topic in files: sorted segments, mapped into memory.

A segment is an Arrow IPC file whose record batches are sorted by key, with each key at most once, followed by a
trailer with the checksum of all bytes before it. Its schema's metadata has the topic, its cluster, the definition's
hash and the offsets of the records that it covers. Segments of a folder are a chain: each covers the records after
those of the one before. A version may be dated before versions of earlier segments, so a lookup compares versions
across segments.

A file is written beside its place, synchronized and renamed, so a crash leaves whole segments only. A file that is
damaged, of another topic or of another format is removed with those after it, and the records that they covered are
read from the topic again.
"""

import contextlib
import ctypes
import io
import json
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.contracts.offsets import Offsets
from include.runtime.durable_files import NEW, replacing
from include.runtime.failpoints import failpoint
from spark_jobs.decoding.arrow import array, newest_versions

log = logging.getLogger(__name__)

Keys = npt.NDArray[np.int64]

FORMAT = 1
CHUNK_ROWS = 1 << 17  # of a record batch; a merge holds as many rows of each segment at once
FAN_IN = 16  # segments that one merge reads at most
COMPACT_SHARE = 0.1  # a segment is merged with the later ones if they have this share of its rows
ERASE_S = 3600.0  # deleted and replaced values are removed from the base at most this often, if there are any
ERASE_DURATIONS = 100  # and at most this often, in durations of the last merge
_TRAILER = struct.Struct("<I8s")  # CRC-32 of the bytes before, magic
_MAGIC = b"SEGMENT\n"
_READ_BYTES = 8 << 20
_PROGRESS_S = 10.0
_LONG_S = 1.0
_METADATA = b"segment"
_FILES = "[0-9]*-[0-9]*.arrow"


@dataclass(frozen=True)
class Origin:
    """The source of a table's rows. Segments of another origin are not used.

    `definition` is a hash of the columns and of the rules that made rows of records, `timeline` that of the database
    with the rejects among them.
    """

    cluster_id: str
    topic: str
    topic_id: str
    definition: str
    timeline: str


class SegmentUnusable(Exception):
    """A file is not a whole segment of this table; the message says why."""


@dataclass(frozen=True)
class Segment:
    """A mapped file with the newest versions of the records from `start` up to `end` of the topic.

    `first` and `last` are its place in the chain; a merged segment takes the places of those that it replaces.
    """

    path: Path
    first: int
    last: int
    start: Offsets
    end: Offsets
    rows: int
    deleted: int
    chunks: tuple[pa.RecordBatch, ...]
    first_keys: Keys  # of each chunk

    def find(self, keys: Keys) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these keys, which are ascending and unique."""
        bounds = [*np.searchsorted(keys, self.first_keys), len(keys)]
        for chunk, begin, end in zip(self.chunks, bounds, bounds[1:], strict=False):
            if begin == end:
                continue
            wanted, there = keys[begin:end], _keys_of(chunk)
            at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
            if len(found := at[there[at] == wanted]):
                yield chunk.take(pa.array(found))

    def between(self, begin: int | None, end: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows with `begin` <= key < `end`; None is no bound."""
        for number, chunk in enumerate(self.chunks):
            if end is not None and self.first_keys[number] >= end:
                return
            there = _keys_of(chunk)
            if begin is not None and there[-1] < begin:
                continue
            low = 0 if begin is None else int(np.searchsorted(there, begin))
            high = len(there) if end is None else int(np.searchsorted(there, end))
            yield chunk.slice(low, high - low)


class SegmentStore:
    """The segments of one folder, which belongs to one process.

    One thread looks up and appends. Merges run in a thread of their own, and lookups go on meanwhile.
    """

    def __init__(self, folder: Path, origin: Origin, schema: pa.Schema) -> None:
        """`schema` has the key, the columns, and those of the version: see `arrow_rows.table_schema`."""
        self._folder = folder
        self._origin = origin
        self._schema = schema
        self._key = schema.names[0]
        self._segments: list[Segment] = []
        self._lock = threading.Lock()
        self._merger = ThreadPoolExecutor(1, "merge-segments")
        self._merging: Future[None] | None = None
        self._merged_at = time.monotonic()
        self._merge_s = 0.0
        self._is_closed = False

    def open(self) -> None:
        """Map the segments that are whole and of this origin, and remove the other files.

        Each file is read once from its start to its end, to compare its checksum, which also brings it into the page
        cache: reads in the order of a batch's keys would take minutes for what this takes seconds.
        """
        for path in self._folder.glob(f"*{NEW}"):
            path.unlink()
        found = sorted(self._folder.glob(_FILES), key=_place_of)
        for path in found:
            first, last = _place_of(path)
            if any(other != path and _place_of(other)[0] <= first and last <= _place_of(other)[1] for other in found):
                path.unlink()  # merged into the other one; the process ended before it could remove it
        for path in sorted(self._folder.glob(_FILES), key=_place_of):
            try:
                segment = self._usable(path)
            except SegmentUnusable as exc:
                log.warning("%s is not used, and its records are read from the topic again: %s", path, exc)
                path.unlink()
            else:
                self._segments.append(segment)

    def _usable(self, path: Path) -> Segment:
        """Open a file as the next segment of the chain. Raises SegmentUnusable."""
        segment = read_segment(path, self._origin, self._schema)
        before = self._segments[-1] if self._segments else None
        if segment.first != (before.last + 1 if before else 0) or (before and not _follows(segment.start, before.end)):
            raise SegmentUnusable("a segment before it is missing or not usable")
        return segment

    def clear(self) -> None:
        """Remove all segments."""
        self._wait_for_merge()
        with self._lock:
            for segment in self._segments:
                segment.path.unlink(missing_ok=True)
            self._segments = []

    @property
    def start(self) -> Offsets:
        """The offsets from which the topic was read; empty without segments."""
        return dict(self._segments[0].start) if self._segments else {}

    @property
    def end(self) -> Offsets:
        """The offsets of the first records that no segment covers; empty without segments."""
        return dict(self._segments[-1].end) if self._segments else {}

    @property
    def rows(self) -> tuple[int, int]:
        """The number of rows in the first segment, and in all later ones, which may replace rows of the first."""
        with self._lock:
            return sum(each.rows for each in self._segments[:1]), sum(each.rows for each in self._segments[1:])

    @property
    def size(self) -> int:
        """The bytes of all files."""
        with self._lock:
            return sum(each.path.stat().st_size for each in self._segments)

    def find(self, keys: Keys) -> list[pa.RecordBatch]:
        """Return the rows with these keys, which are ascending and unique: a key's versions of all segments."""
        with self._lock:
            segments = list(self._segments)
        return [rows for segment in segments for rows in segment.find(keys)]

    def append(self, rows: pa.Table, start: Offsets, end: Offsets) -> None:
        """Write a segment with the newest versions of the records from `start` up to `end`.

        `start` must be the end of the last segment. Raises OSError if the file cannot be written; then nothing has
        changed, and the call may be repeated.
        """
        if self._segments and not _follows(start, self._segments[-1].end):
            raise ValueError(f"a segment from {start} does not follow one up to {self._segments[-1].end}")
        place = self._segments[-1].last + 1 if self._segments else 0
        newest = [_sorted(newest_versions(rows, self._key), self._key)]
        segment = self._write((place, place), start, end, newest)
        with self._lock:
            self._segments.append(segment)

    def merge_behind(self, keep_erased_s: float = ERASE_S) -> None:
        """Start the merges that are due in the background, if none is running. Raises the error of the last one."""
        if self._merging is not None:
            if not self._merging.done():
                return
            self._wait_for_merge()
        if self._due(keep_erased_s):
            self._merging = self._merger.submit(self._merge_due, keep_erased_s)

    def _merge_due(self, keep_erased_s: float) -> None:
        while not self._is_closed and (count := self._due(keep_erased_s)):
            self._merge(count)
        if self._merge_s > _LONG_S:
            release_memory()

    def merge(self) -> None:
        """Merge all segments into one, in the foreground."""
        self._wait_for_merge()
        while len(self._segments) > 1:
            self._merge(min(len(self._segments), FAN_IN))

    def _due(self, keep_erased_s: float) -> int:
        """Return how many of the last segments are to be merged; 0 for none."""
        segments = self._segments
        count, rows = 1, segments[-1].rows if segments else 0
        while count < len(segments) and rows >= COMPACT_SHARE * segments[-count - 1].rows:
            count += 1
            rows += segments[-count].rows
        is_erasing = len(segments) > 1 and any(each.deleted for each in segments[1:])
        wait_s = max(keep_erased_s, ERASE_DURATIONS * self._merge_s)
        if is_erasing and time.monotonic() - self._merged_at >= wait_s:
            count = len(segments)
        return min(count, FAN_IN) if count > 1 else 0

    def _merge(self, count: int) -> None:
        """Replace the last `count` segments by one."""
        began = time.monotonic()
        with self._lock:
            merged = self._segments[-count:]
        segment = self._write(
            (merged[0].first, merged[-1].last), merged[0].start, merged[-1].end, _merged_chunks(merged, self._key)
        )
        failpoint("state.merged")
        with self._lock:  # segments that were appended meanwhile stay behind it
            at = self._segments.index(merged[0])
            is_all = at == 0
            self._segments[at : at + count] = [segment]
        for each in merged:
            each.path.unlink()
        self._merge_s = time.monotonic() - began
        if is_all:
            self._merged_at = time.monotonic()
        log.info("merged segments of %s rows into %d rows in %.1f s", [each.rows for each in merged], segment.rows,
                 self._merge_s)  # fmt: skip

    def _write(self, place: tuple[int, int], start: Offsets, end: Offsets, chunks: Iterable[pa.Table]) -> Segment:
        """Write a file of sorted tables, and return it mapped."""
        path = self._folder / f"{place[0]:010d}-{place[1]:010d}.arrow"
        about = {"format": FORMAT, **asdict(self._origin), "first": place[0], "last": place[1], "start": start,
                 "end": end}  # fmt: skip
        schema = self._schema.with_metadata({_METADATA: json.dumps(about).encode()})
        with replacing(path) as file:
            checked = _Checked(file)
            with pa.ipc.new_file(pa.PythonFile(checked, "w"), schema) as writer:
                for rows in chunks:
                    for batch in rows.cast(schema).combine_chunks().to_batches(max_chunksize=CHUNK_ROWS):
                        if len(batch):
                            writer.write_batch(batch)
                        failpoint("state.writing")
            file.write(_TRAILER.pack(checked.crc, _MAGIC))
            file.flush()
            failpoint("state.before_rename")
        failpoint("state.after_rename")
        return _mapped(path, self._origin, self._schema)

    def _wait_for_merge(self) -> None:
        if self._merging is not None:
            merging, self._merging = self._merging, None
            merging.result()

    def close(self) -> None:
        """Wait for a running merge. The mapped files stay valid for rows that were returned."""
        self._is_closed = True
        self._merger.shutdown(wait=True, cancel_futures=True)


def release_memory() -> None:
    """Return freed memory to the system: Arrow's pool and glibc keep hundreds of megabytes after a long read."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def newest_of(found: Sequence[pa.RecordBatch | pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the newest version of each key among these rows, sorted by key."""
    tables = [pa.Table.from_batches([each]) if isinstance(each, pa.RecordBatch) else each for each in found]
    rows = pa.concat_tables([schema.empty_table(), *(each.select(schema.names).cast(schema) for each in tables)])
    return _sorted(newest_versions(rows, schema.names[0]), schema.names[0])


def read_segment(path: Path, origin: Origin, schema: pa.Schema) -> Segment:
    """Read a file once, compare its checksum, and map it. Raises SegmentUnusable."""
    began = told = time.monotonic()
    size = path.stat().st_size
    left, crc = size - _TRAILER.size, 0
    if left < 0:
        raise SegmentUnusable("the file is cut off")
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while left:
            block = file.read(min(left, _READ_BYTES))
            if not block:
                raise SegmentUnusable("the file is cut off")
            left, crc = left - len(block), zlib.crc32(block, crc)
            if time.monotonic() - told > _PROGRESS_S:
                told = time.monotonic()
                log.info(
                    "checked %d of %d MB of %s in %.0f s", (size - left) >> 20, size >> 20, path.name, told - began
                )
        written, magic = _TRAILER.unpack(file.read(_TRAILER.size))
    if magic != _MAGIC or written != crc:
        raise SegmentUnusable("its checksum is not that of its content: the file is damaged")
    return _mapped(path, origin, schema)


def _mapped(path: Path, origin: Origin, schema: pa.Schema) -> Segment:
    """Map a file whose checksum is right. Raises SegmentUnusable if it is of another origin."""
    content = pa.memory_map(str(path)).read_buffer()
    reader = pa.ipc.open_file(content.slice(0, content.size - _TRAILER.size))
    about = json.loads(reader.schema.metadata[_METADATA])
    if about["format"] != FORMAT:
        raise SegmentUnusable(f"format {about['format']} is not {FORMAT}, that of this version")
    for name, value in asdict(origin).items():
        if about[name] != value:
            raise SegmentUnusable(f"{name} {about[name]} is not {value}")
    if not reader.schema.equals(schema):
        raise SegmentUnusable("its columns differ from those of the definition")
    chunks = tuple(reader.get_batch(number) for number in range(reader.num_record_batches))
    return Segment(
        path, about["first"], about["last"], _offsets(about["start"]), _offsets(about["end"]),
        sum(map(len, chunks)), sum(each["deleted"].true_count for each in chunks), chunks,
        np.array([_keys_of(each)[0] for each in chunks], np.int64),
    )  # fmt: skip


def _merged_chunks(segments: Sequence[Segment], key: str) -> Iterator[pa.Table]:
    """Yield the newest versions of all keys of these segments, in the order of the keys, range after range.

    A range has the keys of one chunk of the largest segment.
    """
    widest = max(segments, key=lambda segment: len(segment.chunks))
    bounds: list[int | None] = [None, *(int(each) for each in widest.first_keys[1:]), None]
    for begin, end in pairwise(bounds):
        found = [rows for segment in segments for rows in segment.between(begin, end)]
        if found:
            yield _sorted(newest_versions(pa.Table.from_batches(found), key), key)


def _sorted(rows: pa.Table, key: str) -> pa.Table:
    keys = array(rows[key]).to_numpy(zero_copy_only=True)
    if np.all(keys[1:] > keys[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(keys, kind="stable")))


def _keys_of(chunk: pa.RecordBatch) -> Keys:
    keys: Keys = chunk.column(0).to_numpy(zero_copy_only=True)
    return keys


def _place_of(path: Path) -> tuple[int, int]:
    first, _, last = path.stem.partition("-")
    return int(first), int(last)


def _follows(start: Offsets, end: Offsets) -> bool:
    """True if a range from `start` continues one up to `end`; partitions may have been added."""
    return {partition: start.get(partition) for partition in end} == end


def _offsets(texts: dict[str, int]) -> Offsets:
    return {int(partition): offset for partition, offset in texts.items()}


class _Checked(io.RawIOBase):
    """A file that computes the checksum of the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.crc = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return self._file.write(data)
