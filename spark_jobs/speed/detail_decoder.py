"""Decodes records of the output topic into rows of the live table, by column."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.clock import instant_of
from include.contracts.definition import Definition
from include.contracts.fields import END_INSTANT, FIRST_INSTANT
from include.contracts.reject import Reject
from spark_jobs.decoding.arrow_rows import TIMES, array, event_ids, first_header, numbers
from spark_jobs.decoding.raw_columns import RawColumns
from spark_jobs.decoding.slow_path import RowRecord, iter_records
from spark_jobs.speed.served_batch import COORDINATE_TYPES, records_schema, reject_records

_SOURCE = ("stream_partition", "stream_offset", "table_partition", "table_offset")
_REQUIRED = ("stream_partition", "stream_offset")
_FIRST, _END = (pa.scalar(each, pa.timestamp("ms", "UTC")) for each in (FIRST_INSTANT, END_INSTANT))


class DetailDecoder:
    """Decodes batches, and rejects records without the coordinates of their source too."""

    def __init__(self, definition: Definition, timezone: str) -> None:
        self._topic = definition.output
        self._definition = definition
        self._schema = records_schema(definition)
        self._timezone = timezone
        columns = {definition.column_name(each) for each in definition.columns} - {definition.version_column}
        self._columns = RawColumns(definition.output, columns)
        self._headers = {column: definition.source_header(column) for column in _SOURCE}

    def read(self, records: pa.Table) -> pa.Table:
        """Decode records with the columns of RAW into a batch of `spark_jobs.speed.served_batch`.

        Rejects are rows with a `reason`. A tombstone's version is in the version column, so that versions compare
        alike. The order of the rows is unspecified.
        """
        records = records.combine_chunks()
        carried = {
            "kafka_partition": records["partition"], "kafka_offset": records["offset"],
            "kafka_timestamp": _in_years(records["timestamp"]), "_index": pa.array(np.arange(records.num_rows)),
        }  # fmt: skip
        rows, rejects = self._columns.decode(
            array(records["key"]), array(records["value"]),
            pa.table(carried | _sources(array(records["headers"]), self._headers)),
            lambda indexes: iter_records(records.take(indexes)),
        )  # fmt: skip
        has_source = pc.and_(*(pc.is_valid(rows[column]) for column in _REQUIRED))
        if not pc.all(has_source).as_py():
            rejects += self._without_source(rows.filter(pc.invert(has_source)), records)
            rows = rows.filter(has_source)
        return pa.concat_tables([self._of_table(rows), reject_records(rejects, self._definition)])

    def _of_table(self, rows: pa.Table) -> pa.Table:
        local = pc.local_timestamp(rows[self._definition.day_column].cast(pa.timestamp("us", self._timezone)))
        columns = {name: rows[name] for name in rows.column_names}
        columns |= {self._definition.version_column: rows["version_at"], "day": local.cast(pa.date32())}
        nothing = pa.nulls(rows.num_rows)
        arrays = [columns.get(field.name, nothing).cast(field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _without_source(self, rows: pa.Table, records: pa.Table) -> Iterator[Reject]:
        sources = rows.select(_REQUIRED).to_pylist()  # a timestamp may be out of range for Python's datetime
        for record, source in zip(iter_records(records.take(rows["_index"])), sources, strict=True):
            reason = _reason(record, source, self._headers)
            yield Reject(self._topic.name, record.partition(), record.offset(), reason, record.key(), record.value(),
                         instant_of(record.timestamp()[1] * 1000))  # fmt: skip


def _reason(record: RowRecord, source: Mapping[str, Any], names: Mapping[str, str]) -> str:
    given = [name for name, value in record.headers() if value is not None]
    wrong = [
        f"headers/{names[column]}: {'not a whole number' if names[column] in given else 'missing'}"
        for column in _REQUIRED
        if source[column] is None
    ]
    return f"{'; '.join(wrong)}; only the join writes here"


def _in_years(timestamps: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the timestamps in the contract's range of years, null for others: a producer may write any number."""
    is_in = pc.and_(pc.greater_equal(timestamps, _FIRST), pc.less(timestamps, _END))
    return pc.if_else(is_in, timestamps, None).cast(TIMES)


def _sources(headers: pa.Array, names: Mapping[str, str]) -> dict[str, pa.Array]:
    """Return the source coordinates and event id in each record's headers; null if a header is missing or invalid."""
    columns = {column: numbers(first_header(headers, name), COORDINATE_TYPES[column]) for column, name in names.items()}
    return columns | {"event_id": event_ids(headers)}
