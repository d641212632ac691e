"""Reads the intact rows of a damaged fallback store's file, and builds a new file from them.

Rows are read from leaf pages, so they do not depend on an intact B-tree. SQLite's own `.recover` does the same, but
only its command-line shell has it.

A file beside the store's has the expected row count, because damage can remove rows without a trace.
"""

import contextlib
import logging
import os
import sqlite3
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec

from include.contracts.errors import ConfigurationError
from include.gateway.fallback import schema as sql
from include.gateway.fallback.folder import FallbackFolder
from include.gateway.ports import Record, Waiting

log = logging.getLogger(__name__)

# SQLite quotes a damaged schema in its message, which Python cannot decode then.
FILE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)


Row = tuple[int, str, bytes | None, bytes | None, bytes, int, str, bool, int, int, int]
"""Columns in the order of schema.INSERT; the last two are size and checksum."""

_OVERHEAD_BYTES = 100  # of a row, besides key, value and headers
_decode_headers = msgspec.json.Decoder(list[tuple[str, str]]).decode


def row_of(row_id: int, record: Record, error: str, may_be_in_kafka: bool, kept_at_ms: int) -> Row:
    """Return the row of a record."""
    topic, key, value, at_ms = record.topic, record.key, record.value, record.accepted_at_ms
    headers = msgspec.json.encode([(name, text.decode("latin-1")) for name, text in record.headers])
    size = len(key or b"") + len(value or b"") + len(headers) + _OVERHEAD_BYTES
    checksum = _checksum(topic, key, value, headers, at_ms)
    return row_id, topic, key, value, headers, at_ms, error, may_be_in_kafka, kept_at_ms, size, checksum


StoredRow = tuple[int, str, bytes | None, bytes | None, bytes, int, str, bool, int, int, int, str | None]
"""All columns of the table: a Row, and the reason if it was refused."""


def stored_row_of(row: tuple[Any, ...]) -> StoredRow | None:
    """Return a salvaged row, marked as ambiguous; None if it is damaged."""
    found, refused = waiting_of(row[:-1]), row[-1]
    if found.damage is not None:
        return None
    error = found.error if isinstance(found.error, str) else "salvaged"
    return *row_of(found.id, found.record, error, True, found.kept_at_ms), None if refused is None else str(refused)


def waiting_of(row: tuple[Any, ...]) -> Waiting:
    """Return the record of a row. Damage is reported in the result, not raised: one bad row must not block others."""
    row_id, topic, key, value, headers, timestamp_ms, error, may_be_in_kafka, kept_at_ms, _, checksum = row
    damage = None
    pairs: list[tuple[str, bytes]] = []
    try:
        if not (isinstance(topic, str) and isinstance(timestamp_ms, int) and isinstance(kept_at_ms, int)):
            raise TypeError("a column has another type")
        if checksum != _checksum(topic, key, value, headers, timestamp_ms):
            raise ValueError("its checksum differs")
        pairs = [(name, text.encode("latin-1")) for name, text in _decode_headers(headers)]
    except (AttributeError, TypeError, ValueError) as exc:
        damage = f"damaged on the disk: {exc}"
        topic, timestamp_ms, kept_at_ms = str(topic), 0, kept_at_ms if isinstance(kept_at_ms, int) else 0
    record = Record(topic, key, value, pairs, timestamp_ms)
    return Waiting(row_id, record, error, bool(may_be_in_kafka), kept_at_ms, damage)


def _checksum(topic: str, key: bytes | None, value: bytes | None, headers: bytes, timestamp_ms: int) -> int:
    # SQLite detects damage of its own structures only, not of column values.
    start = zlib.crc32(topic.encode(), timestamp_ms & 0xFFFFFFFF)
    return zlib.crc32(headers, zlib.crc32(value or b"", zlib.crc32(key or b"", start)))


FILE = "fallback.count"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BYTES = 128


@dataclass(frozen=True, slots=True)
class Count:
    """Number of rows, and the greatest id ever assigned.

    `uncertain` is the number of additional rows that may or may not exist, since their commit is in progress.
    """

    rows: int
    last_id: int
    uncertain: int = 0


class CountFile:
    """A one-line file beside the store's file.

    Rows being inserted or deleted are uncertain until the commit is done. So whenever the process is killed, an
    undamaged store has at least `rows` rows, and a damaged one has lost at most `rows` + `uncertain`, less those found.
    The line is not synced, so it is valid within one boot of the machine only.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._fd = -1
        self._boot = _boot_id()

    def read(self, of_any_boot: bool = False) -> Count | None:
        """Return the count; None if it is missing, invalid, or of another boot: a power loss may have made it stale."""
        try:
            text, _, checksum = self._path.read_text("ascii").strip().rpartition(" ")
            boot, rows, last_id, uncertain = text.split(" ")
            is_known = of_any_boot or (boot and boot == self._boot)
            if int(checksum) != zlib.crc32(text.encode()) or not is_known:
                return None
            return Count(int(rows), int(last_id), int(uncertain))
        except (OSError, ValueError):
            return None

    def write(self, count: Count) -> None:
        """Write the count. Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        text = f"{self._boot} {count.rows} {count.last_id} {count.uncertain}"
        os.pwrite(self._fd, f"{text} {zlib.crc32(text.encode())}".ljust(_BYTES).encode(), 0)

    def forget(self) -> None:
        """Delete the count, because the store's file is about to be replaced. Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _boot_id() -> str:
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""


_BEGUN, _READY, _PAGES = f"{sql.FILE}.salvaging", f"{sql.FILE}.salvaged", f"{sql.FILE}.pages"
_PARTS = ("", "-wal", "-shm", "-journal")


@dataclass
class Salvage:
    """Reads a damaged file without changing it. `unreadable` counts rows that were found but are damaged."""

    path: Path
    scratch: Path
    unreadable: int = 0

    def iter_rows(self) -> Iterator[StoredRow]:
        """Yield every intact row, waiting or refused, in page order, which is not the order of acceptance.

        Raises OSError, and ConfigurationError if the path is not a file.
        """
        if not self.path.is_file():
            raise ConfigurationError(f"{self.path} is not a file; name one that was set aside")
        with self._pages() as pages:
            for row_id, values in _iter_stored(pages, sql.COLUMNS):
                row = stored_row_of((row_id, *values[1:])) if row_id <= sql.MAX_ID else None
                if row is None:
                    self.unreadable += 1
                    log.warning("record %d of %s is damaged and cannot be saved", row_id, self.path.name)
                else:
                    yield row

    @contextmanager
    def _pages(self) -> Iterator[Path]:
        # a copy with the WAL applied, or the file alone if SQLite cannot open it
        remove(self.scratch)
        try:
            source = f"file:{quote(str(self.path))}?mode=ro"
            with closing(sqlite3.connect(source, uri=True)) as damaged, closing(sqlite3.connect(self.scratch)) as copy:
                damaged.backup(copy, pages=-1)
            yield self.scratch
        except FILE_ERRORS as exc:
            log.warning("the pages of %s are read without its WAL: %s", self.path.name, exc)
            yield self.path
        finally:
            remove(self.scratch)

    def last_id(self) -> int:
        """Return the greatest id ever assigned; 0 if the file no longer tells."""
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as db:
                last_id = int(db.execute(sql.LAST_ID).fetchone()[0])
                return last_id if last_id <= sql.MAX_ID else 0
        except (sqlite3.DatabaseError, ValueError):
            return 0

    def losses(self) -> list[tuple[int, int, str, str | None, int | None]]:
        """Return the losses recorded before this damage; one of a single record if they are unreadable."""
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as db:
                return db.execute(sql.LOSSES).fetchall()
        except FILE_ERRORS:
            if not list(self.path.parent.glob(f"{sql.FILE}.damaged-*")):
                return []
            return [(_now_ms(), 1, "records lost to earlier damage; their number cannot be read any more", None, None)]

    def iter_in_order(self) -> Iterator[StoredRow]:
        """Yield the same rows in the order of acceptance. Sorts them in a temporary file, so memory is bounded."""
        sorter = self.scratch.with_name(self.scratch.name + ".sorted")
        remove(sorter)
        try:
            with closing(sqlite3.connect(sorter)) as db:
                db.executescript(sql.CREATE)
                db.executemany(sql.INSERT_SALVAGED, self.iter_rows())
                yield from db.execute(sql.SALVAGED)
        finally:
            remove(sorter)


def renew(folder: FallbackFolder, expected: Count | None, why: str) -> None:
    """Replace the damaged file by a new one with its intact rows, and count the others as lost.

    Rows keep their ids, and so their order. The damaged file is kept under another name. After a crash in between, the
    next opening starts again, or completes the replacement in `finish`. Raises OSError and sqlite3.Error if the disk
    cannot be written.
    """
    begun = folder.path / _BEGUN
    remove(begun)
    salvage = Salvage(folder.path / sql.FILE, folder.path / _PAGES)
    aside = folder.name_aside(sql.FILE)
    with closing(sqlite3.connect(begun, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        for statement in sql.CREATE.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {sql.VERSION}")
        db.executemany(sql.INSERT_SALVAGED, salvage.iter_rows())
        saved, first_id, last_id = db.execute(sql.ROWS).fetchone()
        last_id = max(last_id, salvage.last_id())
        if expected is None:  # upper bound: rows before the oldest one found count as sent
            lost = max(1, salvage.unreadable, last_id - first_id + 1 - saved)
        else:  # a file that lost its last commits looks intact, and lacks their rows and their ids
            most = expected.rows + expected.uncertain
            lost = max(most - saved, min(expected.last_id - last_id, most), 0)
            last_id = max(last_id, expected.last_id)
        db.execute(sql.BEGIN_IDS)
        db.execute(sql.SET_LAST_ID, (last_id,))
        db.executemany(sql.INSERT_LOSS, salvage.losses())
        if lost:
            db.execute(sql.INSERT_LOSS, (_now_ms(), lost, f"records that cannot be read from {aside}", None, None))
        db.execute("COMMIT")
    begun.chmod(0o600)
    begun.rename(folder.path / _READY)
    folder.sync()
    finish(folder, aside)
    log.critical(
        "fallback store damaged (%s): set aside as %s in %s; %d records are saved, %d lost;"
        " see docs/runbooks/gateway-fallback.md",
        why, aside, folder.path, saved, lost,
    )  # fmt: skip


def finish(folder: FallbackFolder, aside: str | None = None) -> None:
    """Complete a replacement: move the new file into place, if one is ready. Raises OSError."""
    ready = folder.path / _READY
    if ready.exists():
        folder.set_aside(sql.FILE, aside)
        CountFile(folder.path).forget()
        ready.rename(folder.path / sql.FILE)
        folder.sync()


def remove(path: Path) -> None:
    """Delete a SQLite file with its WAL and journal."""
    for part in _PARTS:
        path.with_name(path.name + part).unlink(missing_ok=True)


def _now_ms() -> int:
    return int(time.time() * 1000)


_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_TABLE_LEAF = 13
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FIXED = {0: None, 8: 0, 9: 1}

_Value = int | str | bytes | None
_Stored = tuple[int, list[_Value]]
"""A rowid and the stored columns. A column that is an alias of the rowid is None."""


class _Unreadable(ValueError):
    """Bytes that are not a record."""


class _PageFile:
    """A SQLite file without its WAL, as pages.

    The layout is that of https://www.sqlite.org/fileformat2.html. Pages of the free list are skipped, because they
    still have deleted rows.
    """

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        header = self._bytes_at(0, _HEADER_BYTES)
        if not header.startswith(_MAGIC):  # its fields cannot be trusted
            header = b""
        self._page_bytes = self._usable = _page_bytes(header)
        self._pages = size_bytes // self._page_bytes
        self._free = self._free_pages(header)

    def iter_rows(self, columns: int) -> Iterator[_Stored]:
        """Yield every readable row with so many columns, in the order of the pages."""
        for number in range(1, self._pages + 1):
            if number not in self._free:
                yield from self._rows_of(number, columns)

    def _rows_of(self, number: int, columns: int) -> Iterator[_Stored]:
        page = self._page(number)
        start = _HEADER_BYTES if number == 1 else 0
        if len(page) < self._page_bytes or page[start] != _TABLE_LEAF:
            return
        [cells] = struct.unpack_from(">H", page, start + 3)
        pointers = start + 8
        for at in range(pointers, min(pointers + 2 * cells, self._usable - 1), 2):
            try:
                rowid, payload = self._cell(page, struct.unpack_from(">H", page, at)[0])
                values = _values(payload)
            except (_Unreadable, IndexError, struct.error, UnicodeDecodeError):
                continue
            if len(values) == columns:
                yield rowid, values

    def _cell(self, page: bytes, at: int) -> tuple[int, bytes]:
        size, at = _varint(page, at)
        rowid, at = _varint(page, at)
        most = self._usable - 35
        local = size
        if size > most:
            least = (self._usable - 12) * 32 // 255 - 23
            local = least + (size - least) % (self._usable - 4)
            local = local if local <= most else least
        if rowid <= 0 or at + local > self._usable or size > self._pages * self._usable:
            raise _Unreadable
        payload = [page[at : at + local]]
        left = size - local
        [number] = struct.unpack_from(">I", page, at + local) if left else (0,)
        while left > 0:
            overflow = self._page(number) if 0 < number <= self._pages else b""
            if len(overflow) < self._page_bytes:
                raise _Unreadable
            [number] = struct.unpack_from(">I", overflow)
            payload.append(overflow[4 : 4 + min(left, self._usable - 4)])
            left -= len(payload[-1])
        return rowid, b"".join(payload)

    def _free_pages(self, header: bytes) -> set[int]:
        free: set[int] = set()
        trunk = struct.unpack_from(">I", header, 32)[0] if len(header) == _HEADER_BYTES else 0
        while 0 < trunk <= self._pages and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            if len(page) < self._page_bytes:
                break
            trunk, count = struct.unpack_from(">II", page)
            leaves = struct.unpack_from(f">{min(count, self._usable // 4 - 2)}I", page, 8)
            free.update(leaves)
        return free

    def _page(self, number: int) -> bytes:
        return self._bytes_at((number - 1) * self._page_bytes, self._page_bytes)

    def _bytes_at(self, offset: int, count: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(count)


def _iter_stored(path: Path, columns: int) -> Iterator[_Stored]:
    """Yield every readable row of the file's tables with so many columns. Raises OSError."""
    with path.open("rb") as file:
        yield from _PageFile(file, path.stat().st_size).iter_rows(columns)


def _page_bytes(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    size = 1 << 16 if size == 1 else size
    return size if size in {1 << power for power in range(9, 17)} else 4096


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(9):
        byte = data[at + count]
        if count == 8:
            value = value << 8 | byte
            break
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value - (1 << 64) if value >= 1 << 63 else value, at + count + 1


def _values(payload: bytes) -> list[_Value]:
    header_bytes, at = _varint(payload, 0)
    body = header_bytes
    values: list[_Value] = []
    while at < header_bytes:
        kind, at = _varint(payload, at)
        if kind in _FIXED:
            values.append(_FIXED[kind])
            continue
        size = _INTEGER_BYTES.get(kind) or (kind - 12) // 2
        field = payload[body : body + size]
        if kind in (7, 10, 11) or kind < 0 or len(field) < size:
            raise _Unreadable
        body += size
        if kind in _INTEGER_BYTES:
            values.append(int.from_bytes(field, "big", signed=True))
        else:
            values.append(field if kind % 2 == 0 else field.decode())
    return values
