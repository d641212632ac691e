"""Members read by the driver while Spark starts and reads boards: it has nothing else to do."""

import gc
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from include.adapters.generation_store import GenerationStore
from include.contracts.definition import Definition
from spark_jobs.batch.raw_columns import RawColumns
from spark_jobs.batch.rows import member_schema
from spark_jobs.batch.splits import Split, TopicSplit, read_topic

MAX_RECORDS = 500_000  # about 50 MB in columns, which every worker holds


@dataclass(frozen=True)
class PreloadedMembers:
    """Versions with the columns of `member_schema`, and how many records they were read from."""

    versions: Sequence[pa.Table] = ()
    records: int = 0


class MemberPreload:
    """Reads the first splits of the table's topic, as many as there is room for, in a thread of its own."""

    def __init__(
        self, splits: Sequence[Split], definition: Definition, bootstrap_servers: str, store: GenerationStore
    ) -> None:
        self._definition = definition
        self._bootstrap_servers = bootstrap_servers
        self._store = store
        mine: list[TopicSplit] = []
        self.left: list[Split] = []  # somebody else must read them
        room = MAX_RECORDS
        for split in splits:
            if isinstance(split, TopicSplit) and split.end - split.start <= room:
                mine.append(split)
                room -= split.end - split.start
            else:
                self.left.append(split)
        executor = ThreadPoolExecutor(1, "member-preload")
        self._preload: Future[PreloadedMembers] = executor.submit(self._read, mine)
        executor.shutdown(wait=False)

    def result(self) -> PreloadedMembers:
        """What was read; waits for it. Errors as those of `read_topic`."""
        return self._preload.result()

    def _read(self, splits: Sequence[TopicSplit]) -> PreloadedMembers:
        schema = member_schema(self._definition)
        columns = RawColumns(self._definition.table, self._definition.version_field, schema.names)
        found: list[pa.Table] = []
        records_read = 0
        gc.disable()  # a record is some tuples, none of them in a circle; as in the tasks
        try:
            for records in read_topic(splits, self._bootstrap_servers, all_headers=False):
                versions, rejects = columns.read(records)
                self._store.save_rejects(rejects)
                found.append(versions.select(schema.names))
                records_read += records.num_rows
        finally:
            gc.enable()
        return PreloadedMembers(found, records_read)
