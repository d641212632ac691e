"""Reads members in the driver, which is otherwise idle while Spark starts and its tasks read boards."""

import gc
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from include.contracts.definition import Definition
from include.database.generation_store import GenerationStore
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.decoding.arrow import RawColumns, member_schema
from spark_jobs.sources.splits import Split, TopicSplit, read_topic

MAX_RECORDS = 500_000  # about 50 MB of columns, in the memory of every worker


@dataclass(frozen=True)
class PreloadedMembers:
    """Versions with the columns of `member_schema`, and the number of records they were read from."""

    versions: Sequence[pa.Table] = ()
    records: int = 0


class MemberPreload:
    """Reads splits of the table's topic in a thread, up to `MAX_RECORDS` records."""

    def __init__(
        self, splits: Sequence[Split], definition: Definition, kafka: KafkaConnection, store: GenerationStore
    ) -> None:
        self._definition = definition
        self._kafka = kafka
        self._store = store
        mine: list[TopicSplit] = []
        self.left: list[Split] = []  # for the tasks to read
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
        """Return the members. Blocks until they are read; raises the errors of `read_topic`."""
        return self._preload.result()

    def _read(self, splits: Sequence[TopicSplit]) -> PreloadedMembers:
        schema = member_schema(self._definition)
        columns = RawColumns(self._definition.table, schema.names)
        found: list[pa.Table] = []
        records_read = 0
        gc.disable()  # records are tuples without reference cycles; the tasks disable it too
        try:
            for records in read_topic(splits, self._kafka, all_headers=False):
                versions, rejects = columns.read(records)
                self._store.save_rejects(rejects)
                found.append(versions.select(schema.names))
                records_read += records.num_rows
        finally:
            gc.enable()
        return PreloadedMembers(found, records_read)
