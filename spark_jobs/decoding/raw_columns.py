"""Decodes raw records into columns: by column on the fast path, one by one with `read_record` on the slow path.

Batch jobs, the archive and the stream decode with it. Spark decodes boards in its own plan (`transforms.decode`).
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import ArrowInvalid

from include.contracts.fields import LONG_MAX, LONG_MIN
from include.contracts.topics import Topic
from include.contracts.validation import Reject
from spark_jobs.decoding.arrow_rows import TIMES, array, arrow_type
from spark_jobs.decoding.json_columns import JsonColumns
from spark_jobs.decoding.record_decoder import Message, TableRow, read_record
from spark_jobs.decoding.slow_path import iter_records

_DECIMAL = "^(0|-?[1-9][0-9]{0,18})$"  # the form that `record_id` accepts
_READ = ("key", "value", "headers")


class RawColumns:
    """Decodes records of a topic into rows with the given columns; the key and the version are always included.

    Rows have the key, the other columns, `version_at` and `deleted`, then the records' own columns except key, value
    and headers. A tombstone has only its key. The order of the rows is unspecified.
    """

    def __init__(self, topic: Topic, columns: Collection[str]) -> None:
        self._topic = topic
        self._key = topic.field(topic.key_field)
        self._version = topic.field(topic.version_field)
        self._kept = [field for field in topic.fields if field.column in columns and field != self._key]
        self._json = JsonColumns(topic)
        self.looked_at = 0  # records that took the slow path

    def read(self, records: pa.Table) -> tuple[pa.Table, list[Reject]]:
        """Return the rows of the records, and the rejects. Columns besides those of RAW are copied to the rows."""
        records = records.combine_chunks()
        carried = records.drop_columns([name for name in _READ if name in records.column_names])
        return self.decode(
            array(records["key"]), array(records["value"]), carried, lambda indexes: iter_records(records.take(indexes))
        )

    def decode(
        self, keys: pa.Array, values: pa.Array, carried: pa.Table, records_at: Callable[[pa.Array], Iterable[Message]]
    ) -> tuple[pa.Table, list[Reject]]:
        """Return the rows of records with these keys and values, and the rejects. `carried` is copied to the rows.

        `carried` has the column `timestamp`, the records' times in milliseconds, unless the topic's versions have no
        bound. `records_at` returns the records with these indexes, for the slow path.
        """
        times = array(carried["timestamp"]) if self._topic.clock_tolerance is not None else None
        fields, fast_path_mask = self._json.read(keys, values, times)
        if pc.all(fast_path_mask).as_py():  # nearly always
            return self._plain(fields, carried), []
        needs_slow_path = pc.indices_nonzero(pc.invert(fast_path_mask))
        self.looked_at += len(needs_slow_path)
        rows, rejects = self._one_by_one(records_at(needs_slow_path), carried.take(needs_slow_path))
        return pa.concat_tables([self._plain(fields, carried.filter(fast_path_mask)), rows]), rejects

    def _plain(self, fields: pa.Table, carried: pa.Table) -> pa.Table:
        columns = [fields[field.name] for field in (self._key, *self._kept, self._version)]
        columns += [pa.repeat(False, fields.num_rows), *carried.columns]
        return pa.Table.from_arrays(columns, schema=self._schema(carried))

    def _one_by_one(self, records: Iterable[Message], carried: pa.Table) -> tuple[pa.Table, list[Reject]]:
        rows: list[TableRow] = []
        rejects: list[Reject] = []
        row_indexes = []
        for number, record in enumerate(records):
            match read_record(record, self._topic):
                case Reject() as rejected:
                    rejects.append(rejected)
                case row:
                    rows.append(row)
                    row_indexes.append(number)
        values: list[list[Any]] = [[row.key for row in rows]]
        values += [[row.values.get(field.column) for row in rows] for field in self._kept]
        values += [[row.version_at for row in rows], [row.deleted for row in rows]]
        schema = self._schema(carried)
        arrays = [pa.array(each, schema.field(number).type) for number, each in enumerate(values)]
        arrays += carried.take(pa.array(row_indexes, pa.int64())).columns
        return pa.Table.from_arrays(arrays, schema=schema), rejects

    def _schema(self, carried: pa.Table) -> pa.Schema:
        fields = [pa.field(field.column, arrow_type(field)) for field in (self._key, *self._kept)]
        return pa.schema([*fields, pa.field("version_at", TIMES), pa.field("deleted", pa.bool_()), *carried.schema])


def longs(values: pa.Array) -> pa.Array:
    """Parse decimal texts; null for a text that is not a 64-bit integer."""
    digits = pc.if_else(pc.match_substring_regex(values, _DECIMAL), values, None).cast(pa.string())
    try:
        return digits.cast(pa.int64())
    except ArrowInvalid:  # a number is out of range
        numbers = (None if text is None else int(text) for text in digits.to_pylist())
        return pa.array([n if n is not None and LONG_MIN <= n <= LONG_MAX else None for n in numbers], pa.int64())
