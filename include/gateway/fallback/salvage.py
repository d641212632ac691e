"""Reads the intact rows of a damaged fallback store's file, and builds a new file from them.

A file beside the store's has the expected row count, because damage can remove rows without a trace.
"""

import contextlib
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from include.contracts.errors import ConfigurationError
from include.gateway.fallback import schema as sql
from include.gateway.fallback.folder import FallbackFolder
from include.gateway.fallback.sqlite_pages import iter_rows
from include.gateway.ports import Record, Waiting

log = logging.getLogger(__name__)

# SQLite quotes a damaged schema in its message, which Python cannot decode then.
FILE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)


Row = tuple[int, str, bytes | None, bytes | None, bytes, int, str, bool, int, int, int]
"""Columns in the order of fallback_schema.INSERT; the last two are size and checksum."""

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
            for row_id, values in iter_rows(pages, sql.COLUMNS):
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
