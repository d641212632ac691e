"""Rows of board_detail for tests of the tables, without Kafka and without Spark."""

import datetime as dt
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from include.adapters.generation_store import Counts, Excluded, GenerationStore
from include.adapters.serving_store import ServingStore
from include.contracts.day import Day
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.settings import Settings
from include.sql.named import COORDINATES, query
from spark_jobs.connectors.postgres import copy_arrow

DAY = Day.parse("2026-11-20", "Asia/Seoul")
NOON = DAY.start + dt.timedelta(hours=12)
TOPIC_ID = "topic-1"

_TYPES = {"bigint": pa.int64(), "integer": pa.int32(), "text": pa.string(), "timestamptz": pa.timestamp("us", "UTC")}
_SCHEMA = pa.schema([(name, _TYPES[PIPELINE.postgres_type(name)]) for name in PIPELINE.relational_columns]
                    + [(name, _TYPES[kind]) for name, (kind, _) in COORDINATES.items()])  # fmt: skip
_LIVE = pa.schema([*_SCHEMA, ("day", pa.date32()), ("deleted", pa.bool_())])
_FINAL = pa.schema([("generation_id", pa.int64()), ("day", pa.date32()), *_SCHEMA, ("replayed", pa.bool_())])


def row(board_id: int, offset: int, **fields: Any) -> dict[str, Any]:
    """One row, made from the board record at that offset of partition 0; named fields replace the rest."""
    return {
        "board_id": board_id, "member_id": 7, "nickname": "하늘", "city": "서울", "phone": None,
        "title": f"v{offset}", "body": "본문", "modified_at": NOON, "created_at": NOON, "event_id": f"e{offset}",
        "board_partition": 0, "board_offset": offset, "member_partition": 0, "member_offset": 0,
        "kafka_partition": 0, "kafka_offset": offset, "day": DAY.date, "deleted": False, "replayed": False,
        **fields,
    }  # fmt: skip


def tombstone(board_id: int, offset: int, at: dt.datetime = NOON) -> dict[str, Any]:
    """What the speed layer serves for a deleted board: no day, no content, the version of the deletion."""
    nothing = dict.fromkeys(("member_id", "nickname", "city", "title", "body", "created_at", "day"))
    return row(board_id, offset, **nothing, modified_at=at, deleted=True)


def opened_store(settings: Settings, next_offset: int = 0) -> ServingStore:
    """A serving store whose ledger has one partition."""
    store = ServingStore(settings.database, "serve", "board-detail", TOPIC_ID)
    store.open_ledger({0: next_offset})
    return store


def serve(store: ServingStore, rows: Iterable[dict[str, Any]]) -> int:
    """Serve the rows as one batch, as the speed layer does; returns how many were written."""
    listed = list(rows)
    table = pa.Table.from_pylist(listed, schema=_LIVE)

    def copy(cursor: Any, ledger: Any) -> int:
        return copy_arrow(cursor, query("copy_stage_detail"), table)

    return store.apply({0: max(r["kafka_offset"] for r in listed) + 1}, copy, lambda cursor: None)


def build(
    settings: Settings,
    rows: Iterable[dict[str, Any]],
    cut: int,
    run_id: str,
    raw_distinct: int | None = None,
    pending: Sequence[tuple[int, int]] = (),
) -> int:
    """Build a generation out of the rows, as the rebuild does; returns its id. `pending`: (board, offset)."""
    store = GenerationStore(settings.database)
    generation_id = store.begin(DAY, run_id, None, {"board": {0: cut}, "member": {0: 0}})
    listed = [{**r, "generation_id": generation_id} for r in rows]
    table = pa.Table.from_pylist(listed, schema=_FINAL)
    store.load_part(generation_id, 0, table.num_rows, partial(copy_arrow, table=table))
    store.save_excluded(generation_id, [Excluded("pending", str(b), b, 0, offset, None) for b, offset in pending])
    distinct = len(listed) + len(pending) if raw_distinct is None else raw_distinct
    store.finish(generation_id, DAY, Counts(distinct, len(pending), 0, 0))
    return generation_id
