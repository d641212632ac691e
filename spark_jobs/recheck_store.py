"""Rows of the tables that were made from records which the contract rejects by now, and their removal."""

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.sessions import connect
from include.database.shown_keys import a_few_at_a_time, day_number
from include.runtime.settings import DatabaseSettings
from spark_jobs.speed.pending_store import PendingRecord

PAGE = 1_000


class RejectedRecord(NamedTuple):
    """The coordinates of a record of the stream or the table that the contract rejects."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class MadeRow(NamedTuple):
    """A row that was made from a rejected record: its place, day, key of the stream and version, and the record.

    `place` is live, covered or pending; of a published day final, or the kind of a record that is left out.
    """

    place: str
    day: dt.date | None
    key: int
    version_at: dt.datetime | None
    topic: str
    partition: int
    offset: int

    @property
    def row(self) -> tuple[str, dt.date | None, int]:
        """Place, day and key: those of one row if both of its records are rejected."""
        return self.place, self.day, self.key


class RecheckStore:
    """Works as the owner of the tables, the only role that may delete from all of them. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database

    def find(self, records: Collection[RejectedRecord]) -> list[MadeRow]:
        """Return the rows that were made from these records. Changes nothing."""
        with connect(self._database, "pipeline_owner", "recheck") as connection, connection.cursor() as cursor:
            _begin(cursor, records)
            cursor.execute(query("select_made_of_rejected", cursor))
            found = [MadeRow(*row) for row in cursor.fetchall()]
            cursor.execute(query("select_days_shown", cursor))
            for day, generation_id in a_few_at_a_time(cursor, cursor.fetchall()):
                shown = {"day_number": day_number(day), "generation_id": generation_id}
                cursor.execute(query("select_shown_of_rejected", cursor), shown)
                found += [MadeRow(*row) for row in cursor.fetchall()]
            connection.rollback()
        return found

    def remove(
        self, records: Collection[RejectedRecord], again: Iterable[PendingRecord], days: Mapping[dt.date, int],
        cause: str, lease: DriverLease,
    ) -> Mapping[str, int]:  # fmt: skip
        """Remove the rows of the speed layer, and mark published days dirty; returns the number of rows by table.

        `again` are the records to join instead; they wait in `pending_record`. `days` are the days to rebuild, with the
        number of rows. Raises DriverSuperseded.
        """
        removed: dict[str, int] = {}
        with connect(self._database, "pipeline_owner", "recheck") as connection, connection.cursor() as cursor:
            _begin(cursor, records)
            lease.hold(cursor)
            cursor.execute(query("hold_pointers", cursor))
            cursor.execute(query("lock_days_of_rejected", cursor), {"days": list(days)})
            published = [day for day, is_published in cursor.fetchall() if is_published]
            for table, name in (
                ("pending_record", "delete_pending_of_rejected"),
                ("detail_covered", "delete_covered_of_rejected"),
                ("detail_live", "delete_live_of_rejected"),
                ("late_version", "delete_late_of_rejected"),
            ):
                cursor.execute(query(name, cursor))
                removed[table] = cursor.rowcount
            if rows := [(*record, True) for record in again]:
                execute_values(cursor, query("insert_pending", cursor), rows, page_size=PAGE)
            removed["sent again"] = len(rows)
            if published:
                marks = {"cause": cause, "days": published, "counts": [days[day] for day in published]}
                cursor.execute(query("mark_days_dirty", cursor), marks)
        return removed


def days_to_rebuild(found: Sequence[MadeRow]) -> Mapping[dt.date, int]:
    """Return the number of these rows by day, of rows that a rebuild must replace."""
    rows = {made.row for made in found}
    return Counter(day for place, day, _ in rows if day is not None and place != "pending")


def _begin(cursor: Cursor, records: Collection[RejectedRecord]) -> None:
    cursor.execute(query("create_rejected_record", cursor))
    if records:
        execute_values(cursor, query("insert_rejected_record", cursor), list(records), page_size=PAGE)
