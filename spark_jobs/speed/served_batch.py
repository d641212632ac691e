"""Decodes a batch of the output topic by column, and prepares it for PostgreSQL as one Arrow table.

Columns, in `records_schema`: those of the live table, `day`, `deleted`, then `reason` (null for a valid record),
`record_key` and `record_value` (of rejects only) and `kafka_timestamp`.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.clock import instant_of
from include.contracts.definition import Definition
from include.contracts.validation import Reject
from include.database.named import COORDINATES
from spark_jobs.decoding.arrow import (
    TIMES,
    RawColumns,
    array,
    arrow_type,
    coordinates,
    days_of,
    event_ids,
    first_header,
    in_years,
    newest_versions,
)
from spark_jobs.decoding.reference import iter_records

_TYPES = {"bigint": pa.int64(), "integer": pa.int32(), "text": pa.string()}
COORDINATE_TYPES = {name: _TYPES[kind] for name, (kind, _) in COORDINATES.items()}
REPLACED_BY = 10**17  # as in the function ordered_offset of PostgreSQL


@cache
def live_columns(pipeline: Definition) -> tuple[str, ...]:
    """Return the columns of table `detail_live` that a batch fills, in the order of COPY."""
    return (*pipeline.relational_columns, *COORDINATES, "day", "deleted")


@cache
def records_schema(pipeline: Definition) -> pa.Schema:
    """Return the columns of a batch."""
    return pa.schema([
        *((pipeline.column_name(each), arrow_type(pipeline.output.field(each.output))) for each in pipeline.columns),
        *COORDINATE_TYPES.items(),
        ("day", pa.date32()), ("deleted", pa.bool_()), ("reason", pa.string()), ("record_key", pa.binary()),
        ("record_value", pa.binary()), ("kafka_timestamp", TIMES),
    ])  # fmt: skip


def reject_records(rejects: Iterable[Reject], pipeline: Definition) -> pa.Table:
    """The rejects as records of a batch."""
    rows = [{"kafka_partition": each.partition, "kafka_offset": each.offset, "reason": each.reason,
             "record_key": each.key, "record_value": each.value, "kafka_timestamp": each.kafka_timestamp}
            for each in rejects]  # fmt: skip
    return pa.Table.from_pylist(rows, records_schema(pipeline))


def ends_of(records: pa.Table) -> dict[int, int]:
    """Return the offset after the last record of each partition."""
    last = records.group_by("kafka_partition").aggregate([("kafka_offset", "max")])
    return {p: o + 1 for p, o in zip(last["kafka_partition"].to_pylist(), last["kafka_offset_max"].to_pylist(),
                                     strict=True)}  # fmt: skip


def not_below(records: pa.Table, ledger: Mapping[int, int]) -> pa.Table:
    """Return the records that are not below the ledger. Those below it were written by an earlier try of the batch."""
    first = records.group_by("kafka_partition").aggregate([("kafka_offset", "min")])
    partitions = first["kafka_partition"].combine_chunks()
    next_offsets = pa.array([ledger[p] for p in partitions.to_pylist()], pa.int64())
    if pc.all(pc.greater_equal(first["kafka_offset_min"], next_offsets)).as_py():
        return records  # as nearly always
    least = next_offsets.take(pc.index_in(records["kafka_partition"].combine_chunks(), value_set=partitions))
    return records.filter(pc.greater_equal(records["kafka_offset"], least))


def holds_record(partitions: pa.ChunkedArray, offsets: pa.ChunkedArray, partition: int, offset: int) -> bool:
    """True if the record is among those with these partitions and offsets."""
    return bool(pc.any(pc.and_(pc.equal(partitions, partition), pc.equal(offsets, offset))).as_py())


def valid_rows(records: pa.Table) -> pa.Table:
    """Return the rows without a reason to reject them."""
    if records["reason"].null_count == records.num_rows:
        return records
    return records.filter(pc.is_null(records["reason"]))


def marked_of_replaced(rows: pa.Table, until: Mapping[int, int]) -> pa.Table:
    """Return the rows; those below `until` get coordinates that no cut covers, since their topic was replaced.

    `until`: per partition of the output, the first offset made from the present topic.
    """
    if not until:
        return rows  # as nearly always
    partitions = pc.index_in(rows["kafka_partition"], value_set=pa.array([*until], pa.int32()))
    begins = pa.array([*until.values()], pa.int64()).take(partitions.combine_chunks())
    is_old = pc.less(rows["kafka_offset"], pc.fill_null(begins, 0))
    is_old = pc.and_(is_old, pc.greater_equal(rows["stream_partition"], 0))  # negative: was pending, marked already
    for name, marked in (
        ("stream_partition", pc.subtract(pa.scalar(-1, pa.int32()), rows["stream_partition"])),
        ("stream_offset", pc.subtract(rows["stream_offset"], REPLACED_BY)),
    ):
        rows = rows.set_column(rows.schema.get_field_index(name), name, pc.if_else(is_old, marked, rows[name]))
    return rows


def rejected_rows(records: pa.Table, topic: str, consumer: str) -> list[Reject]:
    """Return the rows with a reason, as rows of table `reject`."""
    if records["reason"].null_count == records.num_rows:
        return []
    broken = records.filter(pc.is_valid(records["reason"]))
    return [
        Reject(topic, row["kafka_partition"].as_py(), row["kafka_offset"].as_py(), row["reason"].as_py(),
               row["record_key"].as_py(), row["record_value"].as_py(), instant(row["kafka_timestamp"]), consumer)
        for row in _scalars(broken)
    ]  # fmt: skip


def newest_rows(rows: pa.Table, pipeline: Definition) -> pa.Table:
    """Return one row per key: the first copy in the topic of its newest version.

    A tombstone has no day. It gets the day of another version of its key in the batch, if there is one.
    """
    key = pipeline.key_column
    newest = newest_versions(rows, key, (
        (pipeline.version_column, "descending"), ("stream_offset", "descending"), ("kafka_partition", "ascending"),
        ("kafka_offset", "ascending"),
    ))  # fmt: skip
    if not has_null_days(newest):
        return newest
    days = rows.group_by(key).aggregate([("day", "max")])
    of_the_key = (
        days["day_max"]
        .combine_chunks()
        .take(pc.index_in(newest[key].combine_chunks(), value_set=days[key].combine_chunks()))
    )
    filled = pc.coalesce(newest["day"].combine_chunks(), of_the_key)
    return newest.set_column(newest.schema.get_field_index("day"), "day", filled)


def has_null_days(rows: pa.Table) -> bool:
    """True if the rows have a tombstone whose day is not known."""
    return bool(rows["day"].null_count)


def repeated_sources(rows: pa.Table) -> int:
    """Return the number of rows made from the same stream record as an earlier row of the batch."""
    distinct = rows.group_by(["stream_partition", "stream_offset"]).aggregate([])
    return int(rows.num_rows - distinct.num_rows)


def day_numbers(rows: pa.Table) -> set[int]:
    """Return the days of the rows, counted from 1970-01-01: PostgreSQL has dates that Python does not have."""
    return set(pc.unique(rows["day"].combine_chunks().cast(pa.int32()).drop_null()).to_pylist())


def are_new(rows: pa.Table, key: str, known: set[int], published: set[int]) -> pa.Array:
    """Return a mask of the rows whose key, in that column, is not known, and whose day is not published."""
    is_known = pc.is_in(rows[key], value_set=pa.array(known, pa.int64()))
    is_published = pc.is_in(rows["day"].cast(pa.int32()), value_set=pa.array(published, pa.int32()))
    return pc.invert(pc.or_(pc.or_(is_known, is_published), pc.is_null(rows["day"])))


def split(rows: pa.Table, which: pa.Array) -> tuple[pa.Table, pa.Table]:
    """Return the rows for which the mask is true, and the others."""
    return rows.filter(which), rows.filter(pc.invert(which))


def newest_timestamp(records: pa.Table) -> dt.datetime | None:
    """Return the newest Kafka timestamp of the records."""
    return instant(pc.max(records["kafka_timestamp"]))


def instant(timestamp: pa.Scalar) -> dt.datetime | None:
    """Return the timestamp; None if Python has no such date: a producer may write any number."""
    return None if timestamp.value is None else instant_of(timestamp.value)


def _scalars(rows: pa.Table) -> Iterator[dict[str, pa.Scalar]]:
    """Yield the rows as dicts of scalars; slow, for few rows."""
    for number in range(rows.num_rows):
        yield {name: rows[name][number] for name in rows.column_names}


class DetailDecoder:
    """Decodes batches, and rejects records without the coordinates of their source too."""

    def __init__(self, definition: Definition, timezone: str) -> None:
        self._topic = definition.output
        self._definition = definition
        self._schema = records_schema(definition)
        self._timezone = timezone
        columns = {definition.column_name(each) for each in definition.columns} - {definition.version_column}
        self._columns = RawColumns(definition.output, columns)
        self._stream_header, self._table_header = definition.stream.source_header, definition.table.source_header

    def read(self, records: pa.Table) -> pa.Table:
        """Decode records with the columns of RAW into a batch of `spark_jobs.speed.served_batch`.

        Rejects are rows with a `reason`. A tombstone's version is in the version column, so that versions compare
        alike. The order of the rows is unspecified.
        """
        records = records.combine_chunks()
        carried = {
            "kafka_partition": records["partition"], "kafka_offset": records["offset"],
            "kafka_timestamp": in_years(records["timestamp"]), "_index": pa.array(np.arange(records.num_rows)),
        }  # fmt: skip
        rows, rejects = self._columns.decode(
            array(records["key"]), array(records["value"]),
            pa.table(carried | self._sources(array(records["headers"]))),
            lambda indexes: iter_records(records.take(indexes)),
        )  # fmt: skip
        has_source = pc.is_valid(rows["stream_offset"])
        if not pc.all(has_source).as_py():
            rejects += self._without_source(rows.filter(pc.invert(has_source)), records)
            rows = rows.filter(has_source)
        return pa.concat_tables([self._of_table(rows), reject_records(rejects, self._definition)])

    def _of_table(self, rows: pa.Table) -> pa.Table:
        days = days_of(rows[self._definition.day_column], self._timezone)
        columns = {name: rows[name] for name in rows.column_names}
        columns |= {self._definition.version_column: rows["version_at"], "day": days}
        nothing = pa.nulls(rows.num_rows)
        arrays = [columns.get(field.name, nothing).cast(field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _sources(self, headers: pa.Array) -> dict[str, pa.Array]:
        """Return the coordinates and the event id in each record's headers; null if a header is missing or invalid."""
        stream, table = (coordinates(first_header(headers, name)) for name in (self._stream_header, self._table_header))
        return {
            "stream_partition": stream[0], "stream_offset": stream[1], "table_partition": table[0],
            "table_offset": table[1], "event_id": event_ids(headers),
        }  # fmt: skip

    def _without_source(self, rows: pa.Table, records: pa.Table) -> Iterator[Reject]:
        for record in iter_records(records.take(rows["_index"])):
            given = [name for name, value in record.headers() if value is not None]
            wrong = "not topic/partition/offset" if self._stream_header in given else "missing"
            reason = f"headers/{self._stream_header}: {wrong}; only the join writes here"
            yield Reject(self._topic.name, record.partition(), record.offset(), reason, record.key(), record.value(),
                         instant_of(record.timestamp()[1] * 1000))  # fmt: skip
