"""Decodes records of the table's topic by column. It reads a whole topic before the Spark session has started."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from include.adapters.arrow_rows import TIMES, arrow_type, newest_versions
from include.contracts.definition import Definition
from include.contracts.reject import Reject
from spark_jobs.speed.json_columns import JsonColumns, converted
from spark_jobs.speed.record_decoder import read_record


class TableDecoder:
    """Collects rows of the table: by column on the fast path, with `read_record` on the slow path.

    The fast path accepts only records that `read_record` would accept, with the same values.
    """

    def __init__(self, definition: Definition) -> None:
        topic = definition.table
        columns = [topic.field(each.source).column for each in definition.columns if each.side == "table"]
        self.rejects: list[Reject] = []
        self.count = 0  # records read
        self.held_bytes = 0  # of the rows and the rejects
        self.looked_at = 0  # records that took the slow path
        self._topic = topic
        self._key = topic.field(topic.key_field)
        self._version = topic.field(topic.version_field)
        self._kept = [field for field in topic.fields if field.column in columns]
        self._json = JsonColumns(topic)
        self._schema = pa.schema([
            (self._key.column, pa.int64()), *((field.column, arrow_type(field)) for field in self._kept),
            ("partition", pa.int32()), ("offset", pa.int64()), ("version_at", TIMES), ("deleted", pa.bool_()),
        ])  # fmt: skip
        self._tables: list[pa.Table] = [self._schema.empty_table()]

    def add(self, messages: list[Message]) -> None:
        """Decode and collect these records."""
        keys = pa.array([message.key() for message in messages], pa.binary())
        values = pa.array([message.value() for message in messages], pa.binary())
        fields, fast_path_mask = self._json.read(keys, values)
        coordinates = pa.table({
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
        }).filter(fast_path_mask)  # fmt: skip
        columns = [
            fields[self._key.name], *(converted(fields[field.name], field) for field in self._kept),
            *coordinates.columns, converted(fields[self._version.name], self._version),
            pa.repeat(False, fields.num_rows),
        ]  # fmt: skip
        self._append(pa.Table.from_arrays(columns, schema=self._schema))
        self._add_one_by_one(messages[number] for number in pc.indices_nonzero(pc.invert(fast_path_mask)).to_pylist())
        self.count += len(messages)

    def newest(self) -> pa.Table:
        """Return the newest version of each key read so far.

        The table has one chunk: Spark turns a small table whose first chunk is empty into a relation without rows.
        """
        return newest_versions(pa.concat_tables(self._tables), self._key.column)

    def _add_one_by_one(self, messages: Iterable[Message]) -> None:
        rows = []
        for message in messages:
            self.looked_at += 1
            match read_record(message, self._topic):
                case Reject() as rejected:
                    self.rejects.append(rejected)
                    self.held_bytes += len(rejected.key or b"") + len(rejected.value or b"")
                case row:
                    rows.append(row)
        if rows:
            values: list[list[Any]] = [[row.key for row in rows]]
            values += [[row.values.get(field.column) for row in rows] for field in self._kept]
            values += [[getattr(row, name) for row in rows] for name in self._schema.names[len(values) :]]
            arrays = [pa.array(each, field.type) for each, field in zip(values, self._schema, strict=True)]
            self._append(pa.Table.from_arrays(arrays, schema=self._schema))

    def _append(self, rows: pa.Table) -> None:
        self._tables.append(rows)
        self.held_bytes += rows.nbytes
