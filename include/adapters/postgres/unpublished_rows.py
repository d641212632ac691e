"""Finds rows of the system of record whose newest version is not published."""

import datetime as dt
import io
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import psycopg2
from psycopg2.extensions import connection as Connection

from include.adapters.postgres.system_of_record import saved_row
from include.adapters.published_versions import PublishedVersion
from include.contracts.site import BOARD, MEMBER
from include.contracts.topics import Topic
from include.errors import DatabaseUnavailable
from include.gateway.ports import Saved
from include.sql.named import query

_BATCH = 10_000
_FETCH = 100  # small, because a document can be large and all of them must fit into the producer's buffer
_SELECT = {MEMBER.name: "select_unpublished_members", BOARD.name: "select_unpublished_boards"}


@dataclass(frozen=True, slots=True)
class UnpublishedRow:
    """A row to publish. `key` is the client's key of the change that made this version, if it is known."""

    saved: Saved
    key: str | None


class UnpublishedRows:
    """Compares the tables with published versions in a temporary table, so memory is bounded.

    Every method blocks and raises DatabaseUnavailable. `connection` is the gateway role's; the caller closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def committed_until(self, min_age_s: float) -> dt.datetime:
        """Return the instant before which changes should be published by now, by the clock that made the versions."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("select_committed_until", cursor), {"min_age_s": min_age_s})
            [until] = cursor.fetchone()
            assert isinstance(until, dt.datetime)
            return until

    def begin(self) -> None:
        """Delete the published versions of the previous topic."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("create_published_version", cursor))
            cursor.execute(query("truncate_published_version", cursor))

    def add(self, versions: Iterable[PublishedVersion]) -> int:
        """Add published versions; returns their number."""
        count, remaining = 0, iter(versions)
        while batch := list(islice(remaining, _BATCH)):
            lines = "".join(f"{one.row_id},{one.modified_at.isoformat() if one.modified_at else ''}\n" for one in batch)
            with self._transaction(), self._connection.cursor() as cursor:
                cursor.copy_expert(query("copy_published_version", cursor), io.StringIO(lines))
            count += len(batch)
        return count

    def iter_rows(
        self, topic: Topic, since: dt.datetime | None, until: dt.datetime
    ) -> Generator[list[UnpublishedRow], None, None]:
        """Yield batches of rows modified in [since, until) whose version is not published, the oldest change first."""
        window = {"since": since or dt.datetime.min.replace(tzinfo=dt.UTC), "until": until}
        with self._transaction(), self._connection.cursor(f"unpublished_{topic.name}") as cursor:
            cursor.itersize = _FETCH
            cursor.execute(query(_SELECT[topic.name], cursor), window)
            while rows := cursor.fetchmany(_FETCH):
                yield [_unpublished(topic, row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._connection:
                yield
        except psycopg2.Error as exc:  # by its code: the server's text quotes rows
            raise DatabaseUnavailable(sqlstate=exc.pgcode or "none", kind=type(exc).__name__) from exc


def _unpublished(topic: Topic, row: tuple[object, ...]) -> UnpublishedRow:
    *columns, is_deleted, key = row
    assert key is None or isinstance(key, str)
    saved = saved_row(topic, tuple(columns))
    if is_deleted:
        saved = Saved(saved.id, None, saved.modified_at, None)
    return UnpublishedRow(saved, key)
