"""Raw records with the columns that the archive sorts them by: the id of their key, and its day."""

import datetime as dt
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.definition import Definition
from include.contracts.fields import LONG_MAX, LONG_MIN, record_id
from include.contracts.topics import Topic
from include.contracts.validation import Reject
from include.contracts.versions import OLDEST_FIRST
from include.kafka.record_table import RAW
from spark_jobs.decoding.arrow import (
    JsonColumns,
    RawColumns,
    array,
    coordinates,
    days_of,
    first_header,
    longs,
    table_schema,
)
from spark_jobs.decoding.reference import RowRecord, iter_records, read_record

ID, DAY, DELETED = "id", "day", "deleted"
RECORDS = pa.schema([(ID, pa.int64()), (DAY, pa.date32()), (DELETED, pa.bool_()), *RAW])
# Coordinates of the output topic's records and of the stream's records they were made from; `key` is the stream's key.
OUTPUT_COORDINATES = pa.schema([
    ("partition", pa.int32()), ("offset", pa.int64()), ("key", pa.int64()), ("stream_partition", pa.int32()),
    ("stream_offset", pa.int64()),
])  # fmt: skip
DATED_COORDINATES = pa.schema([(DAY, pa.date32()), *OUTPUT_COORDINATES])


class DatedRows:
    """Adds `id` and `day` to raw records of a topic that has the day field.

    A record that breaks the contract keeps the id in it, if that can be read, and has no day: Kafka's timestamp may
    decide its day, which is left to the reader. A tombstone has no day either.
    """

    def __init__(self, topic: Topic, definition: Definition, timezone: str) -> None:
        self._topic = topic
        self._day_field = definition.day_field_of(topic)
        self._timezone = timezone
        self._json = JsonColumns(topic)

    def add(self, records: pa.Table) -> pa.Table:
        """Return the records with the schema `RECORDS`, in the same order."""
        records = records.select(RAW.names).combine_chunks()
        times = array(records["timestamp"]) if self._topic.clock_tolerance is not None else None
        fields, fast_path_mask = self._json.read(array(records["key"]), array(records["value"]), times)
        ids, days = (
            array(fields[self._topic.key_field]),
            self._days(fields[self._day_field.name]),
        )
        if not pc.all(fast_path_mask).as_py():
            needs_slow_path = [self._one(record) for record in iter_records(records.filter(pc.invert(fast_path_mask)))]
            ids = _merged(fast_path_mask, ids, pa.array([each[0] for each in needs_slow_path], pa.int64()))
            days = _merged(fast_path_mask, days, pa.array([each[1] for each in needs_slow_path], pa.date32()))
        return pa.Table.from_arrays([ids, days, pc.is_null(records["value"]), *records.columns], schema=RECORDS)

    def _days(self, instants: pa.ChunkedArray) -> pa.Array:
        return array(days_of(instants, self._timezone))

    def _one(self, record: RowRecord) -> tuple[int | None, dt.date | None]:
        match read_record(record, self._topic):
            case Reject():
                return named_id(record.key(), record.value(), self._topic), None
            case row if row.deleted:
                return row.key, None
            case row:
                return row.key, self._day(row.values[self._day_field.column])

    def _day(self, instant: dt.datetime) -> dt.date:
        return instant.astimezone(ZoneInfo(self._timezone)).date()


class VersionRows:
    """Decodes records of the table into versions of its keys, with the columns of `arrow.table_schema`."""

    def __init__(self, definition: Definition) -> None:
        self.schema = table_schema(definition)
        self._columns = RawColumns(definition.table, self.schema.names)

    @property
    def key(self) -> str:
        """The name of the key's column."""
        return str(self.schema.names[0])

    def read(self, records: pa.Table) -> pa.Table:
        """Return the versions in raw records. Records that break the contract are left out; the raw files keep them."""
        rows, _ = self._columns.read(records.select(RAW.names))
        return rows.select(self.schema.names).cast(self.schema)

    def ordered(self, rows: pa.Table) -> pa.Table:
        """Return the rows sorted by key, then from the oldest version to the newest."""
        return rows.sort_by([(self.key, "ascending"), *OLDEST_FIRST])


def places(dated: pa.Table, definition: Definition) -> pa.Table:
    """Return the coordinates of the output topic's records, and of the records of the stream they were made from.

    The schema is `DATED_COORDINATES`. Deletions are left out, because no row is made from them; so are records without
    an id or without the coordinates of their source.
    """
    dated = dated.filter(pc.invert(dated[DELETED]))
    sources = first_header(array(dated["headers"]), definition.stream.source_header)
    table = pa.Table.from_arrays(
        [dated[DAY], dated["partition"], dated["offset"], longs(array(dated["key"])), *coordinates(sources)],
        schema=DATED_COORDINATES,
    )
    return table.filter(pc.and_(pc.is_valid(table["stream_offset"]), pc.is_valid(table["key"])))


def of_no_day(records: pa.Table) -> pa.Table:
    """Return raw records of the table with the schema `RECORDS`, without a day. The id is the record's key."""
    ids = longs(array(records["key"]))
    nothing = pa.nulls(len(ids), pa.date32())
    return pa.Table.from_arrays([ids, nothing, pc.is_null(records["value"]), *records.columns], schema=RECORDS)


def named_id(key: bytes | None, value: bytes | None, topic: Topic) -> int | None:
    """Return the id in a broken record: from its value, else from its key; None if neither has one."""
    try:
        found = msgspec.json.decode(value or b"")
        number = found.get(topic.key_field) if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        number = None
    if not isinstance(number, int) or isinstance(number, bool):
        return record_id(key)
    return number if LONG_MIN <= number <= LONG_MAX else None


def _merged(fast_path_mask: pa.Array, right: pa.Array, others: pa.Array) -> pa.Array:
    """Merge two arrays: `right` has one value per row, `others` one per row that the mask excludes, in order."""
    empty = pa.nulls(len(fast_path_mask), right.type)
    return pc.replace_with_mask(pc.replace_with_mask(empty, fast_path_mask, right), pc.invert(fast_path_mask), others)
