"""Decodes records of the output topic into rows of the live table, by column."""

import datetime as dt
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from include.adapters.arrow_rows import array, event_ids, first_header, numbers
from include.adapters.postgres.served_batch import COORDINATE_TYPES, records_schema
from include.contracts.definition import Definition
from include.contracts.reject import Reject
from spark_jobs.speed.json_columns import JsonColumns, converted
from spark_jobs.speed.record_decoder import TableRow, read_record
from spark_jobs.speed.slow_path import RowRecord, iter_records

_SOURCE = ("stream_partition", "stream_offset", "table_partition", "table_offset")


class DetailDecoder:
    """Decodes batches: by column on the fast path, record by record on the slow path."""

    def __init__(self, definition: Definition, timezone: str) -> None:
        self._topic = definition.output
        self._definition = definition
        self._schema = records_schema(definition)
        self._timezone = timezone
        self._json = JsonColumns(definition.output)
        self._day_column = definition.day_column
        self._headers = {column: definition.source_header(column) for column in _SOURCE}

    def read(self, records: pa.Table) -> pa.Table:
        """Decode records of Spark's Kafka source into a batch of `include.adapters.postgres.served_batch`.

        Rejects are rows with a `reason`. A tombstone's version is in the version column, so that versions compare
        alike. The order of the rows is unspecified.
        """
        records = records.combine_chunks()
        fields, fast_path_mask = self._json.read(array(records["key"]), array(records["value"]))
        sources = _sources(array(records["headers"]), self._headers)
        has_source = pc.and_(pc.is_valid(sources["stream_partition"]), pc.is_valid(sources["stream_offset"]))
        is_plain = array(pc.and_(fast_path_mask, has_source))
        if pc.all(is_plain).as_py():  # nearly always
            return self._plain(fields, records, sources)
        plain = self._plain(
            fields.filter(is_plain.filter(fast_path_mask)), records.filter(is_plain), sources.filter(is_plain)
        )
        needs_slow_path = pc.invert(is_plain)
        return pa.concat_tables(
            [plain, self._one_by_one(records.filter(needs_slow_path), sources.filter(needs_slow_path))]
        )

    def _plain(self, fields: pa.Table, records: pa.Table, sources: pa.Table) -> pa.Table:
        columns = {field.column: converted(fields[field.name], field) for field in self._topic.fields}
        local = pc.local_timestamp(columns[self._day_column].cast(pa.timestamp("us", self._timezone)))
        columns |= {name: sources[name] for name in sources.column_names}
        columns |= {
            "kafka_partition": records["partition"], "kafka_offset": records["offset"],
            "kafka_timestamp": records["timestamp"], "day": local.cast(pa.date32()),
            "deleted": pa.repeat(False, records.num_rows),
        }  # fmt: skip
        nothing = pa.nulls(records.num_rows)
        arrays = [columns.get(field.name, nothing).cast(field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _one_by_one(self, records: pa.Table, sources: pa.Table) -> pa.Table:
        rows = [self._row(*each) for each in zip(iter_records(records), sources.to_pylist(), strict=True)]
        arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _row(self, record: RowRecord, source: dict[str, Any]) -> dict[str, Any]:
        coordinates = {"kafka_partition": record.partition(), "kafka_offset": record.offset(),
                       "kafka_timestamp": record.row["timestamp"]}  # fmt: skip
        match read_record(record, self._topic):
            case Reject() as rejected:
                reason: str | None = rejected.reason
            case row if (reason := _reason(record, source, self._headers)) is None:
                key, version = self._definition.key_column, self._definition.version_column
                values = {**row.values, key: row.key, version: row.version_at}
                return {**values, **source, **coordinates, "day": self._day(row), "deleted": row.deleted}
        return {**coordinates, "reason": reason, "record_key": record.key(), "record_value": record.value()}

    def _day(self, row: TableRow) -> dt.date | None:
        if row.deleted:
            return None
        instant: dt.datetime = row.values[self._day_column]
        return instant.astimezone(ZoneInfo(self._timezone)).date()


def _reason(record: RowRecord, source: dict[str, Any], names: Mapping[str, str]) -> str | None:
    given = [name for name, value in record.headers() if value is not None]
    wrong = [
        f"headers/{names[column]}: {'not a whole number' if names[column] in given else 'missing'}"
        for column in ("stream_partition", "stream_offset")
        if source[column] is None
    ]
    return f"{'; '.join(wrong)}; only the join writes here" if wrong else None


def _sources(headers: pa.Array, names: Mapping[str, str]) -> pa.Table:
    """Return the source coordinates and event id in each record's headers; null if a header is missing or invalid."""
    columns = {"event_id": event_ids(headers)}
    for column, name in names.items():
        columns[column] = numbers(first_header(headers, name), COORDINATE_TYPES[column])
    return pa.table(columns)
