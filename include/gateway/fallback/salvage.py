"""Reads the intact rows of a damaged fallback store's file, and builds a new file from them."""

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from include.contracts.errors import ConfigurationError
from include.gateway.fallback import schema as sql
from include.gateway.fallback.count import Count, CountFile
from include.gateway.fallback.folder import FallbackFolder
from include.gateway.fallback.rows import StoredRow, stored_row_of
from include.gateway.fallback.sqlite_pages import iter_rows

log = logging.getLogger(__name__)

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
        except sqlite3.DatabaseError as exc:
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
        except sqlite3.DatabaseError:
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
        "fallback store damaged (%s): set aside as %s in %s; %d records are saved, %d lost; see the runbook",
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
