"""Reads rows of a damaged SQLite file from its leaf pages, so it does not depend on an intact B-tree.

SQLite's own `.recover` does the same, but only its command-line shell has it. The layout is that of
https://www.sqlite.org/fileformat2.html. Pages of the free list are skipped, because they still have deleted rows.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_TABLE_LEAF = 13
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FIXED = {0: None, 8: 0, 9: 1}

Value = int | str | bytes | None
Row = tuple[int, list[Value]]
"""A rowid and the stored columns. A column that is an alias of the rowid is None."""


class _Unreadable(ValueError):
    """Bytes that are not a record."""


class PageFile:
    """A SQLite file without its WAL, as pages."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        header = self._bytes_at(0, _HEADER_BYTES)
        if not header.startswith(_MAGIC):  # its fields cannot be trusted
            header = b""
        self._page_bytes = self._usable = _page_bytes(header)
        self._pages = size_bytes // self._page_bytes
        self._free = self._free_pages(header)

    def iter_rows(self, columns: int) -> Iterator[Row]:
        """Yield every readable row with so many columns, in the order of the pages."""
        for number in range(1, self._pages + 1):
            if number not in self._free:
                yield from self._rows_of(number, columns)

    def _rows_of(self, number: int, columns: int) -> Iterator[Row]:
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


def iter_rows(path: Path, columns: int) -> Iterator[Row]:
    """Yield every readable row of the file's tables with so many columns. Raises OSError."""
    with path.open("rb") as file:
        yield from PageFile(file, path.stat().st_size).iter_rows(columns)


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


def _values(payload: bytes) -> list[Value]:
    header_bytes, at = _varint(payload, 0)
    body = header_bytes
    values: list[Value] = []
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
