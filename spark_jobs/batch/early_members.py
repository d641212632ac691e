"""Members read by the driver while Spark starts: both take seconds, and neither needs the other."""

import gc
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from include.adapters.generation_store import GenerationStore
from include.contracts.definition import Definition
from spark_jobs.batch.raw_columns import RawColumns
from spark_jobs.batch.rows import member_schema
from spark_jobs.batch.splits import Split, TopicSplit, read_topic

MAX_RECORDS = 1_000_000  # about 100 MB in columns, however long Spark takes to start
_TOGETHER = 2  # splits read side by side


@dataclass(frozen=True)
class Early:
    """Versions with the columns of `member_schema`, and the splits that were not read."""

    versions: list[pa.Table]
    left: tuple[Split, ...]
    records: int


class EarlyMembers:
    """Reads splits of the table's topic in a thread of its own, from when it is made until it is stopped."""

    def __init__(
        self, splits: Sequence[Split], definition: Definition, bootstrap_servers: str, store: GenerationStore
    ) -> None:
        self._splits = splits
        self._definition = definition
        self._bootstrap_servers = bootstrap_servers
        self._store = store
        self._stopping = threading.Event()
        lane = ThreadPoolExecutor(1, "early-members")
        self._early: Future[Early] = lane.submit(self._read)
        lane.shutdown(wait=False)

    def stop(self) -> Early:
        """What was read; the splits under way are read to their end first. Errors as those of `read_topic`."""
        self._stopping.set()
        return self._early.result()

    def _read(self) -> Early:
        schema = member_schema(self._definition)
        columns = RawColumns(self._definition.table, self._definition.version_field, schema.names)
        waiting = [split for split in self._splits if isinstance(split, TopicSplit)]
        others = tuple(split for split in self._splits if not isinstance(split, TopicSplit))
        found: list[pa.Table] = []
        records_read = 0
        gc.disable()  # a record is some tuples, none of them in a circle; as in the tasks
        try:
            while waiting and not self._stopping.is_set():
                together, waiting = waiting[:_TOGETHER], waiting[_TOGETHER:]
                if records_read + sum(split.end - split.start for split in together) > MAX_RECORDS:
                    waiting = [*together, *waiting]
                    break
                for records in read_topic(together, self._bootstrap_servers, all_headers=False):
                    versions, rejects = columns.read(records)
                    self._store.save_rejects(rejects)
                    found.append(versions.select(schema.names))
                    records_read += records.num_rows
        finally:
            gc.enable()
        return Early(found, (*others, *waiting), records_read)
