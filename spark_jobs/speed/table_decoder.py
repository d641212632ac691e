"""Collects rows of the table from its topic's records. It reads a whole topic before the Spark session has started."""

import pyarrow as pa
from confluent_kafka import Message

from include.contracts.definition import Definition
from include.contracts.reject import Reject
from include.kafka.record_table import record_times
from spark_jobs.decoding.arrow_rows import member_schema, newest_versions
from spark_jobs.decoding.raw_columns import RawColumns


class TableDecoder:
    """Rows with the columns of `arrow_rows.member_schema`, and the rejects."""

    def __init__(self, definition: Definition) -> None:
        self.rejects: list[Reject] = []
        self.count = 0  # records read
        self.held_bytes = 0  # of the rows and the rejects
        self._schema = member_schema(definition)
        self._columns = RawColumns(definition.table, self._schema.names)
        self._tables: list[pa.Table] = [self._schema.empty_table()]

    @property
    def looked_at(self) -> int:
        """The number of records that took the slow path."""
        return self._columns.looked_at

    def add(self, messages: list[Message]) -> None:
        """Decode and collect these records."""
        keys = pa.array([message.key() for message in messages], pa.binary())
        values = pa.array([message.value() for message in messages], pa.binary())
        carried = pa.table({
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": record_times(messages),
        })  # fmt: skip
        rows, rejects = self._columns.decode(
            keys, values, carried, lambda indexes: (messages[number] for number in indexes.to_pylist())
        )
        self._tables.append(rows.select(self._schema.names))
        self.rejects += rejects
        self.held_bytes += rows.nbytes + sum(len(each.key or b"") + len(each.value or b"") for each in rejects)
        self.count += len(messages)

    def newest(self) -> pa.Table:
        """Return the newest version of each key read so far.

        The table has one chunk: Spark turns a small table whose first chunk is empty into a relation without rows.
        """
        return newest_versions(pa.concat_tables(self._tables), self._schema.names[0])
