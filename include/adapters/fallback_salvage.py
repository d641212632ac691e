"""Reads what can still be read of a fallback store's file that was set aside as damaged."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from include.adapters import fallback_schema as sql
from include.adapters.fallback_rows import waiting_of
from include.errors import ConfigurationError
from include.gateway.ports import Waiting

log = logging.getLogger(__name__)

_PAGE = 500


class Salvage:
    """One pass over a damaged file, which it leaves as it is; `unreadable` counts ids that are or may be lost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.unreadable = 0

    def iter_rows(self) -> Iterator[Waiting]:
        """Every record that is whole, in the order of acceptance, those set aside too.

        Around damage it halves the range of ids until only what cannot be read is left out. Raises
        ConfigurationError for a file of which nothing can be read.
        """
        if not self._path.is_file():
            raise ConfigurationError(f"no file {self._path}; name one that was set aside")
        with closing(sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True)) as db:
            ranges = [self._bounds(db)]
            while ranges:
                first, last = ranges.pop()
                rows = _read(db, first, last)
                if rows is None and first == last:
                    self._lose(first, "its page is damaged")
                elif rows is None:
                    middle = (first + last) // 2
                    ranges += [(middle + 1, last), (first, middle)]
                elif rows:
                    yield from self._whole(rows)
                    ranges.append((rows[-1][0] + 1, last))

    def _bounds(self, db: sqlite3.Connection) -> tuple[int, int]:
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] != sql.VERSION:
                raise ConfigurationError(f"{self._path} is not of version {sql.VERSION}; try sqlite3's .recover")
            last = int(db.execute(sql.LAST_ID).fetchone()[0])
            try:
                first = int(db.execute(sql.FIRST_ID).fetchone()[0] or 1)
            except sqlite3.DatabaseError:
                first = 1  # it is the oldest that are damaged
        except sqlite3.DatabaseError as exc:
            raise ConfigurationError(f"nothing can be read of {self._path}: {exc}; try sqlite3's .recover") from exc
        return first, last

    def _whole(self, rows: list[tuple[Any, ...]]) -> Iterator[Waiting]:
        for row in rows:
            found = waiting_of(row)
            if found.damage is None:
                yield found
            else:
                self._lose(found.id, found.damage)

    def _lose(self, row_id: int, why: str) -> None:
        self.unreadable += 1
        log.warning("record %d cannot be saved: %s", row_id, why)


def _read(db: sqlite3.Connection, first: int, last: int) -> list[tuple[Any, ...]] | None:
    # None: there is damage in between
    if first > last:
        return []
    try:
        return db.execute(sql.BETWEEN, (first, last, _PAGE)).fetchall()
    except sqlite3.DatabaseError:
        return None
