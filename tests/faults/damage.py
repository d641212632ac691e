"""Damages a fallback store's file: `python -m tests.faults.damage FOLDER KIND SEED`, while no gateway has it open.

A process of its own, since the file may lie on a disk that only some processes see. Prints the damage that was done.
"""

import argparse
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from include.gateway.fallback import schema
from tests.faults.plan import OF_THE_FILE, Fault

_PAGE = 4096
_WAL_HEAD, _FRAME_HEAD = 32, 24
_MOST_ROWS = 3
_WAITING = "SELECT id FROM message WHERE refused IS NULL ORDER BY id"
_CHANGES = (
    "UPDATE message SET key = CAST('7' || key AS BLOB) WHERE id = ?",
    "UPDATE message SET value = CAST(replace(value, '\"serial\"', '\"Serial\"') AS BLOB) WHERE id = ?",
    "UPDATE message SET headers = CAST(replace(headers, 'event-id', 'event-iD') AS BLOB) WHERE id = ?",
)


def damage_page(folder: Path, chance: random.Random) -> str:
    """Write noise over a page, of the file or of its WAL, whichever it falls on."""
    file, wal = folder / schema.FILE, folder / f"{schema.FILE}-wal"
    places = [(file, start) for start in range(0, _size(file), _PAGE)]
    places += [(wal, start) for start in range(_WAL_HEAD + _FRAME_HEAD, _size(wal), _FRAME_HEAD + _PAGE)]
    path, start = chance.choice(places)
    with path.open("r+b") as opened:
        opened.seek(start)
        opened.write(chance.randbytes(min(_PAGE, _size(path) - start)))
    return f"{path.name}, bytes from {start} of {_size(path)}"


def change_rows(folder: Path, chance: random.Random) -> str:
    """Change a few waiting rows' keys, values or headers behind the gateway's back; SQLite's own structure is whole."""
    with closing(sqlite3.connect(folder / schema.FILE, isolation_level=None)) as db:
        ids = [row[0] for row in db.execute(_WAITING)]
        chosen = chance.sample(ids, min(len(ids), chance.randint(1, _MOST_ROWS)))
        for row_id in chosen:
            db.execute(chance.choice(_CHANGES), (row_id,))
    return f"rows {sorted(chosen)} of {len(ids)}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def main() -> int:
    """Damage the file as the arguments say."""
    parser = argparse.ArgumentParser(description="Damages a fallback store's file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", type=Fault, choices=OF_THE_FILE)
    parser.add_argument("seed")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    done = damage_page if arguments.kind is Fault.PAGE_DAMAGED else change_rows
    print(f"{arguments.kind}: {done(arguments.folder, chance)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
