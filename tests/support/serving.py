"""Rows of board_detail for tests of the tables, without Kafka and without Spark."""

import datetime as dt
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from psycopg2.extras import execute_values

from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.bulk_copy import copy_rows
from include.database.driver_lease import DriverLease
from include.database.generation_store import Counts, Excluded, GenerationStore, Part
from include.database.named import COORDINATES, query
from include.database.offset_ledger import OffsetLedger
from include.database.sessions import SessionLimits, connect
from include.runtime.settings import Settings
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.live_table import Applied, LiveTableSink
from spark_jobs.speed.serve import BatchWriter, DecodedBatch
from spark_jobs.speed.served_batch import records_schema
from tests.servers import wait_until
from tests.support.driver import driver_context
from tests.support.pipeline import rows as sql_rows

DAY = Day.parse("2026-11-20", "Asia/Seoul")
NOON = DAY.start + dt.timedelta(hours=12)
TOPIC_ID = "topic-1"

RECORDS = records_schema(PIPELINE)
_SERVED = [RECORDS.field(name) for name in (*PIPELINE.relational_columns, *COORDINATES)]
_FINAL = pa.schema([("generation_id", pa.int64()), ("day", pa.date32()), *_SERVED, ("replayed", pa.bool_())])


def row(board_id: int, offset: int, **fields: Any) -> dict[str, Any]:
    """One row, made from the board record at that offset of partition 0; named fields replace the rest."""
    return {
        "board_id": board_id, "member_id": 7, "nickname": "하늘", "city": "서울", "phone": None,
        "title": f"v{offset}", "body": "본문", "modified_at": NOON, "created_at": NOON, "event_id": f"e{offset}",
        "stream_partition": 0, "stream_offset": offset, "table_partition": 0, "table_offset": 0,
        "kafka_partition": 0, "kafka_offset": offset, "day": DAY.date, "deleted": False, "replayed": False,
        "kafka_timestamp": NOON,
        **fields,
    }  # fmt: skip


def tombstone(board_id: int, offset: int, at: dt.datetime = NOON) -> dict[str, Any]:
    """Return the record that is served for a deleted board: no day, no content, the version of the deletion."""
    nothing = dict.fromkeys(("member_id", "nickname", "city", "title", "body", "created_at", "day"))
    return row(board_id, offset, **nothing, modified_at=at, deleted=True)


def opened_store(
    settings: Settings, next_offset: int = 0, limits: SessionLimits | None = None, topic_id: str = TOPIC_ID
) -> LiveTableSink:
    """A serving store that holds the lease, with a ledger of one partition. The caller closes it."""
    lease = DriverLease(settings.database, "test")
    lease.take()
    start = OffsetLedger(settings.database).open("serve", "board-detail", topic_id, {0: next_offset}, lease)
    store = LiveTableSink(settings.database, "serve", "board-detail", topic_id, lease, limits)
    store.begin(start)
    return store


def batch(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """The rows as the speed layer decodes a batch."""
    return pa.Table.from_pylist(list(rows), schema=RECORDS)


def serve(store: LiveTableSink, rows: Iterable[dict[str, Any]]) -> int:
    """Serve the rows as one batch; returns how many were written."""
    return applied(store, rows).written


def applied(store: LiveTableSink, rows: Iterable[dict[str, Any]]) -> Applied:
    """Serve the rows as one batch."""
    return store.apply(batch(rows))


def build(
    settings: Settings,
    rows: Iterable[dict[str, Any]],
    cut: int,
    run_id: str,
    raw_distinct: int | None = None,
    pending: Sequence[tuple[int, int]] = (),
    day: Day = DAY,
    members: int = 0,
    topic_ids: Mapping[str, str] = MappingProxyType({}),
    unread: tuple[int, int] | None = None,
) -> int:
    """Build a generation out of the rows, as the rebuild does; returns its id. `pending`: (board, offset).

    `members`: the cut of the members' topic. `unread`: offsets of the boards' topic that are in an accepted gap.
    """
    store = GenerationStore(settings.database)
    cuts = {"board": {0: cut}, "member": {0: members}}
    lost = {"board": {0: [unread]}} if unread else {}
    generation_id = store.begin(day, run_id, None, cuts, topic_ids, unread=lost)
    listed = [{**r, "generation_id": generation_id} for r in rows]
    table = pa.Table.from_pylist(listed, schema=_FINAL)
    excluded = [Excluded("pending", str(b), b, 0, offset, None) for b, offset in pending]
    store.save_part(generation_id, day, Part(0, table.num_rows, partial(copy_rows, rows=table), excluded))
    distinct = len(listed) + len(pending) if raw_distinct is None else raw_distinct
    store.finish(generation_id, day, Counts(distinct, len(pending), 0, 0))
    return generation_id


def exclude(
    settings: Settings, generation_id: int, kind: str, board_id: int, offset: int = 0, at: dt.datetime | None = None
) -> None:
    """A board that the build, which is over, left out; `at` is the version of a deletion or of a move."""
    left_out = (generation_id, kind, str(board_id), board_id, 0, offset, "a test says so", at)
    with connect(settings.database, "batch", "test") as connection, connection.cursor() as cursor:
        execute_values(cursor, query("insert_excluded", PIPELINE), [left_out])


def duplicate(settings: Settings, generation_id: int, board_id: int, copies: int) -> None:
    """A board of which the build, which is over, found several records in the output topic."""
    found = (generation_id, DAY.date, board_id, "duplicate", json.dumps({"copies": copies}))
    with connect(settings.database, "batch", "test") as connection, connection.cursor() as cursor:
        execute_values(cursor, query("insert_duplicates", PIPELINE), [found])


def pending(settings: Settings, board_id: int, offset: int, version_at: dt.datetime = NOON) -> None:
    """A board that waits for its member, as the join keeps it."""
    sql_rows(
        settings,
        """INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value, kafka_timestamp,
                                      version_at)
           VALUES ('board', 0, %s, %s, 99, %s, '', %s, %s)""",
        (offset, board_id, DAY.date, NOON, version_at),
    )


@dataclass
class Writing:
    """The writer of the serve query with its store, as the driver has them; `close` at the end."""

    store: LiveTableSink
    state: DriverState = field(default_factory=DriverState)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.writer = BatchWriter(driver_context(state=self.state, stop=self.stop), self.store)

    def give(self, rows: Iterable[dict[str, Any]]) -> bool:
        """Hand a batch over, as Spark's thread does."""
        return self.writer.hand_over(DecodedBatch(0, batch(rows), {"read": 0.0, "decode": 0.0}))

    def finish(self) -> None:
        """Wait for the end of the batch under way. Raises what its writing raised."""
        wait_until(lambda: not self.writer.is_writing, 60, "the batch is written")
        self.writer.check()

    @property
    def waits_for(self) -> str:
        """Return the reason for which the query waits, as it reports it."""
        waiting = self.state.waiting_for("serve")
        return waiting[0] if waiting else ""

    def wait_until_it_says(self, text: str) -> None:
        """Return as soon as the query says that it waits for that."""
        wait_until(lambda: text in self.waits_for, 60, f"the query says that it waits for {text}")
