"""A driver with a member table, which does what its standard input says: one command and one answer (JSON) a line.

`load`, `refresh` and `known KEY…` are the table's methods. `compact` refreshes until all changes are in the base.
`names` returns the nicknames by key, `batch` does so after a refresh, with retries. `where` returns a list for each
partition of the base: the working directory of the executor that holds it, and its keys.
"""

import json
import sys
import time
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from include.kafka.offsets import OffsetReader
from include.kafka.topic_tail import TopicTail
from include.runtime.settings import Settings
from spark_jobs.connectors.session import STREAM_CONFIGURATION, open_session
from spark_jobs.joining import newest_versions
from spark_jobs.speed import table_state as module
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.isolation import MAX_FAILURES
from spark_jobs.speed.table_state import TableState

PARTITIONS = 4
ANSWER = "answer: "  # before it: Java logs to standard output too


def main() -> None:
    """Answer until standard input ends."""
    module.RECENT_ROWS = module.COMPACT_ROWS = 5
    settings = Settings.from_environment()
    servers = settings.kafka.connection
    session = open_session(settings.spark, "member-table", "512m", STREAM_CONFIGURATION)
    table = TableState(session, OffsetReader(servers), TopicTail(servers, "member"), settings.pipeline, DriverState(),
                        lambda _: None, 1 << 20, PARTITIONS)  # fmt: skip
    for line in sys.stdin:
        command, *keys = line.split()
        print(ANSWER + json.dumps(_answer(table, command, [int(key) for key in keys])), flush=True)
    table.close()
    session.stop()


def _answer(table: TableState, command: str, keys: list[int]) -> object:
    match command:
        case "load":
            return table.load()
        case "refresh":
            return table.refresh()
        case "known":
            return table.known(keys)
        case "compact":
            while len(table.relations()) > 1:
                table.refresh()
                time.sleep(0.1)
            return True
        case "names":
            return _names(table)
        case "batch":
            return _batch(table)
        case "where":
            return [[row.executor, row.ids] for row in table.relations()[0].mapInArrow(_where, _WHERE).collect()]
    raise ValueError(command)


def _names(table: TableState) -> dict[int, str]:
    newest = newest_versions(reduce(DataFrame.unionByName, table.relations()), "id_")
    return {row.id_: row.nickname_ for row in newest.collect()}


def _batch(table: TableState) -> dict[int, str]:
    """Refresh and read, and do both again if that fails, as the join does with a batch."""
    for _ in range(MAX_FAILURES - 1):
        table.refresh()
        try:
            return _names(table)
        except (Py4JError, PySparkException) as exc:
            print(f"failed: {type(exc).__name__}", file=sys.stderr)
    table.refresh()
    return _names(table)


_WHERE = "executor string, ids array<long>"


def _where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    ids = [key for batch in batches for key in batch.column("id_").to_pylist()]
    yield pa.RecordBatch.from_pydict({"executor": [str(Path.cwd())], "ids": [ids]}, pa.schema(
        [("executor", pa.string()), ("ids", pa.list_(pa.int64()))]))  # fmt: skip


if __name__ == "__main__":
    main()
