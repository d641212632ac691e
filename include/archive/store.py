"""The catalogue of the raw archive: which files belong to it, which ranges of the topics they hold, what is missing."""

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import psycopg2
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.adapters.kafka.offsets import Offsets
from include.adapters.postgres.offset_ledger import move_partitions, open_partitions
from include.adapters.postgres.sessions import connect, open_connection
from include.errors import LedgerConflict, Retryable
from include.failpoints import failpoint
from include.settings import DatabaseSettings
from include.sql.named import query

CONSUMER = "archive"
Kind = Literal["records", "versions", "places"]


class ArchiveBusy(Retryable):
    """Another run is writing the archive; wait for it, or end it."""


class ArchivedFile(NamedTuple):
    """A Parquet file below the archive's folder. The keys are the least and greatest id in it; None: no readable one.

    `day` is None for what is of no day (tombstones, versions), and for days with few records.
    """

    batch_id: int
    kind: Kind
    day: dt.date | None
    path: str
    record_count: int
    byte_count: int
    first_key: int | None
    last_key: int | None


@dataclass(frozen=True)
class Gap:
    """Records that are not in the archive: offsets (first, end) a partition, and when they came at the earliest."""

    offsets: Mapping[int, tuple[int, int]]
    since: dt.datetime | None
    until: dt.datetime
    reason: str


@dataclass(frozen=True)
class Batch:
    """Ranges of a topic, archived in one transaction. `newest` is the greatest timestamp in ms, a partition."""

    topic: str
    topic_id: str
    starts: Offsets
    ends: Offsets
    newest: dict[int, int]
    record_count: int
    taken_at: dt.datetime
    gap: Gap | None = None
    id: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Position:
    """How far a topic is archived. `places` is empty for one that never was.

    `last_taken_at` is when the last batch of a topic of that name fixed its ends, whatever the topic's id was then.
    """

    places: Offsets
    last_taken_at: dt.datetime | None


@dataclass(frozen=True)
class MemberFiles:
    """All versions of the table's topic before `ends`, in files sorted by key."""

    files: tuple[ArchivedFile, ...]
    ends: Offsets

    @property
    def paths(self) -> tuple[str, ...]:
        """Below the archive's folder."""
        return tuple(file.path for file in self.files)


@dataclass(frozen=True)
class BoardFiles:
    """What the archive has of a day: its records, and files of no day, which may hold some. `ends`: how far it goes."""

    batches: tuple[Batch, ...]
    of_day: tuple[ArchivedFile, ...]
    of_no_day: tuple[ArchivedFile, ...]
    ends: Offsets


class ArchiveStore:
    """Each call is one short transaction, unless it says otherwise. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the one who writes, until the block ends. Raises ArchiveBusy.

        It spares work, no more: two that wrote at once would find out when they list their files.
        """
        connection = open_connection(self._database, "batch", "archive")
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query("archive_lock", cursor))
                if not cursor.fetchone()[0]:
                    raise ArchiveBusy
            yield
            with suppress(psycopg2.Error), connection.cursor() as cursor:  # the server may be gone by now
                cursor.execute(
                    query("archive_unlock", cursor)
                )  # a closed session keeps the lock until its backend has ended
        finally:
            connection.close()

    def identity(self) -> str:
        """Which archive this database is the catalogue of; made up when it is first asked for."""
        with self._transaction() as cursor:
            cursor.execute(query("archive_claim_identity", cursor))
            cursor.execute(query("archive_select_identity", cursor))
            return str(cursor.fetchone()[0])

    def position(self, topic: str, topic_id: str) -> Position:
        """How far the topic is archived."""
        with self._snapshot() as cursor:
            batches = _batches(cursor, topic)
            return Position(_ends(cursor, topic_id), batches[-1].taken_at if batches else None)

    def ends(self, topic: str, topic_id: str) -> Offsets:
        """The end (exclusive) of what is archived of the topic, a partition; empty when nothing is."""
        return self.position(topic, topic_id).places

    def add(self, run_id: str, batch: Batch, files: Sequence[ArchivedFile], expected: Offsets) -> int:
        """List a batch with its files and move the ledger from `expected` to the batch's ends, or do nothing.

        Raises LedgerConflict when another run archived some of it meanwhile.
        """
        with self._transaction() as cursor:
            cursor.execute(query("archive_insert_batch", cursor), _parameters(run_id, batch))
            batch_id = int(cursor.fetchone()[0])
            _insert_files(cursor, [file._replace(batch_id=batch_id) for file in files])
            before = {p: expected.get(p, batch.starts.get(p, end)) for p, end in batch.ends.items()}
            open_partitions(cursor, CONSUMER, batch.topic, batch.topic_id, before)
            move_partitions(cursor, CONSUMER, batch.topic, batch.topic_id, before, batch.ends)
            if _ends(cursor, batch.topic_id) != batch.ends:  # moved where this batch moves nothing
                raise LedgerConflict(consumer=CONSUMER, topic=batch.topic, wanted=batch.ends)
            failpoint("archive.before_commit")
            return batch_id

    def replace(self, old: Sequence[ArchivedFile], new: Sequence[ArchivedFile], is_smaller: bool = False) -> None:
        """List `new` in the place of `old`, all or nothing. Raises LedgerConflict when one of `old` is not listed.

        `is_smaller`: records were taken out on purpose, so batches count those that are left.
        """
        with self._transaction() as cursor:
            cursor.execute(query("archive_retire_files", cursor), {"paths": [file.path for file in old]})
            if cursor.rowcount != len(old):
                raise LedgerConflict("Another run replaced files of the archive; this one replaces none")
            _insert_files(cursor, new)
            if is_smaller:
                for batch_id, count in _missing(old, new).items():
                    cursor.execute(query("archive_take_away", cursor), {"batch_id": batch_id, "count": count})

    def members(self, topic_id: str) -> MemberFiles | None:
        """The versions of the table's topic; None when it was never archived."""
        with self._snapshot() as cursor:
            ends = _ends(cursor, topic_id)
            return MemberFiles(_files(cursor, "archive_select_files", topic_id, "versions"), ends) if ends else None

    def board_files(self, topic: str, topic_id: str, day: dt.date) -> BoardFiles:
        """What is archived of a day's records."""
        with self._snapshot() as cursor:
            batches = tuple(batch for batch in _batches(cursor, topic) if batch.topic_id == topic_id)
            files = _files(cursor, "archive_select_files_of_day", topic_id, "records", day=day)
            of_day = tuple(file for file in files if file.day is not None)
            of_no_day = tuple(file for file in files if file.day is None)
            return BoardFiles(batches, of_day, of_no_day, _ends(cursor, topic_id))

    def files_of_keys(self, topic_id: str, day: dt.date, first_key: int, last_key: int) -> tuple[ArchivedFile, ...]:
        """Files of other days in which some of these ids may be."""
        with self._transaction() as cursor:
            return _files(cursor, "archive_select_files_of_keys", topic_id, "records", day=day,
                          first_key=first_key, last_key=last_key)  # fmt: skip

    def records_of(self, batch_id: int) -> tuple[ArchivedFile, ...]:
        """The files with a batch's raw records."""
        with self._transaction() as cursor:
            return _files(cursor, "archive_select_files_of_batch", batch_id=batch_id)

    def places(self, topic_id: str, day: dt.date) -> tuple[tuple[ArchivedFile, ...], Offsets]:
        """Files with the places of the output topic's records of a day, and how far the topic is archived."""
        with self._snapshot() as cursor:
            files = _files(cursor, "archive_select_files_of_day", topic_id, "places", day=day)
            return files, _ends(cursor, topic_id)

    def all_files(self) -> tuple[ArchivedFile, ...]:
        """Every listed file."""
        with self._transaction() as cursor:
            return _files(cursor, "archive_select_all_files")

    def paths(self) -> set[str]:
        """Every path in the catalogue, those of files that were replaced among them."""
        with self._transaction() as cursor:
            cursor.execute(query("archive_select_paths", cursor))
            return {row[0] for row in cursor.fetchall()}

    def replaced(self, after_s: float) -> list[str]:
        """Files that others took the place of, so many seconds ago or more."""
        with self._transaction() as cursor:
            cursor.execute(query("archive_select_retired", cursor), {"after_s": after_s})
            return [row[0] for row in cursor.fetchall()]

    def forget(self, paths: Sequence[str]) -> None:
        """Take replaced files, which are removed by now, out of the catalogue."""
        with self._transaction() as cursor:
            cursor.execute(query("archive_delete_retired", cursor), {"paths": list(paths)})

    def batches(self, topic: str) -> tuple[Batch, ...]:
        """All batches of topics of that name, in the order they were written."""
        with self._transaction() as cursor:
            return tuple(_batches(cursor, topic))

    def uncounted(self) -> list[tuple[int, int, int]]:
        """Batches whose files hold more or fewer records than the batch: id, its count, the files' count."""
        with self._transaction() as cursor:
            cursor.execute(query("archive_select_uncounted", cursor))
            return [(row[0], row[1], row[2]) for row in cursor.fetchall()]

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        with connect(self._database, "batch", "archive") as connection, connection.cursor() as cursor:
            yield cursor

    @contextmanager
    def _snapshot(self) -> Iterator[Cursor]:
        """Files and ends of one moment: a batch that commits between two statements is not half seen."""
        with connect(self._database, "batch", "archive") as connection:
            connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
            with connection.cursor() as cursor:
                yield cursor


def _parameters(run_id: str, batch: Batch) -> dict[str, object]:
    gap = batch.gap
    return {
        "run_id": run_id, "topic": batch.topic, "topic_id": batch.topic_id, "record_count": batch.record_count,
        "starts": json.dumps(batch.starts), "ends": json.dumps(batch.ends), "newest": json.dumps(batch.newest),
        "taken_at": batch.taken_at, "gap": json.dumps(dict(gap.offsets) if gap else {}),
        "gap_since": gap and gap.since, "gap_until": gap and gap.until, "gap_reason": gap and gap.reason,
    }  # fmt: skip


def _missing(old: Iterable[ArchivedFile], new: Iterable[ArchivedFile]) -> Mapping[int, int]:
    """By how many raw records the new files of a batch are fewer. Versions are read from them, and not counted."""
    counts: Counter[int] = Counter()
    for files, sign in ((old, 1), (new, -1)):
        for file in files:
            counts[file.batch_id] += sign * file.record_count if file.kind != "versions" else 0
    return counts


def _insert_files(cursor: Cursor, files: Iterable[ArchivedFile]) -> None:
    rows = list(files)
    if rows:
        execute_values(cursor, query("archive_insert_files", cursor), rows)


def _files(cursor: Cursor, name: str, topic_id: str = "", kind: str = "", **where: object) -> tuple[ArchivedFile, ...]:
    cursor.execute(query(name, cursor), {"topic_id": topic_id, "kind": kind, **where})
    return tuple(ArchivedFile._make(row) for row in cursor.fetchall())


def _batches(cursor: Cursor, topic: str) -> list[Batch]:
    cursor.execute(query("archive_select_batches", cursor), {"topic": topic})
    found = []
    for number, name, topic_id, starts, ends, newest, count, gap, since, until, reason, taken_at in cursor.fetchall():
        missing = None
        if until is not None:
            missing = Gap({int(p): (first, end) for p, (first, end) in gap.items()}, since, until, reason)
        found.append(Batch(name, topic_id, _offsets(starts), _offsets(ends), _offsets(newest), count, taken_at,
                           missing, number))  # fmt: skip
    return found


def _ends(cursor: Cursor, topic_id: str) -> Offsets:
    cursor.execute(query("select_ledger", cursor), {"consumer": CONSUMER, "topic_id": topic_id})
    return dict(cursor.fetchall())


def _offsets(stored: Mapping[str, int]) -> Offsets:
    return {int(partition): offset for partition, offset in stored.items()}
