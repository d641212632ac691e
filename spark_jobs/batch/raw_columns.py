"""Raw records as columns: what is evidently right by the column, all else by `read_record`, as the stream does."""

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.lib import ArrowInvalid

from include.adapters.arrow_rows import array
from include.adapters.speed_store import Reject
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.contracts.topics import Topic
from spark_jobs.speed.json_columns import TIMES, JsonColumns, times
from spark_jobs.speed.record_decoder import TableRow, read_record

_TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": TIMES}
_DECIMAL = "^(0|-?[1-9][0-9]{0,18})$"  # as `record_id` has them
_READ = ("key", "value", "headers")


class RawColumns:
    """Reads records of a topic: its fields of these columns (the key's and the version's are always among them).

    Rows have the key, the other columns, `version_at` and `deleted`, then the records' own columns but key, value and
    headers. A tombstone has its key only. Nothing says in which order they are.
    """

    def __init__(self, topic: Topic, version_field: str, columns: Collection[str]) -> None:
        self._topic = topic
        self._version_field = version_field
        self._key = topic.field(topic.key_field)
        self._kept = [field for field in topic.fields if field.column in columns and field != self._key]
        self._json = JsonColumns(topic)

    def read(self, records: pa.Table) -> tuple[pa.Table, list[Reject]]:
        """The rows of the records (those of RAW, and any more that are to be carried along), and what is none."""
        records = records.combine_chunks()
        carried = records.drop_columns([name for name in _READ if name in records.column_names])
        fields, fast_path_mask = self._json.read(array(records["key"]), array(records["value"]))
        if pc.all(fast_path_mask).as_py():  # as nearly always
            return self._plain(fields, carried), []
        needs_slow_path = pc.indices_nonzero(pc.invert(fast_path_mask))
        rows, rejects = self._one_by_one(records.take(needs_slow_path), carried.take(needs_slow_path))
        return pa.concat_tables([self._plain(fields, carried.filter(fast_path_mask)), rows]), rejects

    def _plain(self, fields: pa.Table, carried: pa.Table) -> pa.Table:
        columns = [fields[self._key.name]]
        columns += [times(fields[f.name]) if f.type == "timestamp" else fields[f.name] for f in self._kept]
        columns += [times(fields[self._version_field]), pa.repeat(False, fields.num_rows), *carried.columns]
        return pa.Table.from_arrays(columns, schema=self._schema(carried))

    def _one_by_one(self, records: pa.Table, carried: pa.Table) -> tuple[pa.Table, list[Reject]]:
        rows: list[TableRow] = []
        rejects: list[Reject] = []
        places = []
        for number, record in enumerate(iter_records(records)):
            match read_record(record, self._topic):
                case Reject() as rejected:
                    rejects.append(rejected)
                case row:
                    rows.append(row)
                    places.append(number)
        values: list[list[Any]] = [[row.key for row in rows]]
        values += [[row.values.get(field.column) for row in rows] for field in self._kept]
        values += [[row.version_at for row in rows], [row.deleted for row in rows]]
        schema = self._schema(carried)
        arrays = [pa.array(each, schema.field(number).type) for number, each in enumerate(values)]
        arrays += carried.take(pa.array(places, pa.int64())).columns
        return pa.Table.from_arrays(arrays, schema=schema), rejects

    def _schema(self, carried: pa.Table) -> pa.Schema:
        fields = [pa.field(field.column, _TYPES[field.type]) for field in (self._key, *self._kept)]
        return pa.schema([*fields, pa.field("version_at", TIMES), pa.field("deleted", pa.bool_()), *carried.schema])


class RawRecord:
    """A row of RAW, as the client library would give it."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._row = row

    def key(self) -> bytes | None:
        """Its key."""
        key: bytes | None = self._row["key"]
        return key

    def value(self) -> bytes | None:
        """Its value; None for a tombstone."""
        value: bytes | None = self._row["value"]
        return value

    def partition(self) -> int:
        """Its partition."""
        return int(self._row["partition"])

    def offset(self) -> int:
        """Its offset."""
        return int(self._row["offset"])

    def timestamp(self) -> tuple[int, int]:
        """The timestamp's kind, and milliseconds since 1970."""
        return 1, self._row["timestamp"] or 0

    def headers(self) -> Sequence[tuple[str, bytes]] | None:
        """Names and values."""
        return [(header["key"], header["value"]) for header in self._row["headers"] or ()]


def iter_records(records: pa.Table) -> Sequence[RawRecord]:
    """The rows of RAW, one by one. Timestamps stay numbers: any producer may write one that Python has no date for."""
    place = records.schema.get_field_index("timestamp")
    plain = records.set_column(place, "timestamp", records["timestamp"].cast(pa.int64()))
    return [RawRecord(row) for row in plain.to_pylist()]


def longs(values: pa.Array) -> pa.Array:
    """Decimal texts as numbers; null for what is none of 64 bits."""
    digits = pc.if_else(pc.match_substring_regex(values, _DECIMAL), values, None).cast(pa.string())
    try:
        return digits.cast(pa.int64())
    except ArrowInvalid:  # too large a number
        numbers = (None if text is None else int(text) for text in digits.to_pylist())
        return pa.array([n if n is not None and LONG_MIN <= n <= LONG_MAX else None for n in numbers], pa.int64())
