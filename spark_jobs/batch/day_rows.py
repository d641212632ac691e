"""The rows of a day: records of the stream, decoded, chosen by version, and joined with the table's versions.

Records that are left out get a reason. The rows have the columns of the generation's table.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import headers as h
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.contracts.validation import Reject, is_timestamp, parse_timestamp
from include.database.generation_store import Duplicate, Excluded
from include.database.named import COORDINATES
from spark_jobs.decoding.arrow import (
    TIMES,
    RawColumns,
    array,
    begins_run,
    by_repetition,
    event_ids,
    first_header,
    newest_versions,
    places_of,
)
from spark_jobs.joining import matches_of_history

MISPLACED_US = 24 * 60 * 60 * 1_000_000  # further apart, `createdAt` and Kafka's timestamp mean that a clock is wrong

VERSIONS = pa.schema([
    ("key", pa.int64()), ("table_key", pa.int64()), ("version_at", TIMES), ("deleted", pa.bool_()),
    ("partition", pa.int32()), ("offset", pa.int64()), ("event_id", pa.string()), ("in_day", pa.bool_()),
    ("misplaced", pa.bool_()),
])  # fmt: skip
BROKEN = pa.schema([
    ("identity", pa.string()), ("key", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64()),
    ("reason", pa.string()),
])  # fmt: skip
SOURCES = pa.schema([
    ("partition", pa.int32()), ("offset", pa.int64()), ("stream_partition", pa.int32()), ("stream_offset", pa.int64()),
])  # fmt: skip
CHOSEN = pa.schema([
    ("table_key", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64()), ("kafka_partition", pa.int32()),
    ("kafka_offset", pa.int64()), ("copies", pa.int64()),
])  # fmt: skip

_MOVED = "a newer version says another day"
_DELETED = "it was deleted"


@dataclass(frozen=True)
class CandidateParts:
    """Decoded records, by use.

    `candidates` are valid records of the day. `versions` are valid records of any day, including tombstones. `broken`
    are records of the day that break the contract, `rejects` are such records of any day.
    """

    candidates: pa.Table
    versions: pa.Table
    broken: pa.Table
    rejects: list[Reject]


class CandidateReader:
    """Decodes raw records of the stream, by column."""

    def __init__(self, definition: Definition, day: Day) -> None:
        stream = definition.stream
        self._day = day
        self._stream = stream
        self._day_field = definition.day_field
        self._key = stream.key_column
        self._join = stream.field(definition.join_field).column
        self._placed_by = stream.field(definition.day_field).column
        self._kept = [stream.field(each.source).column for each in definition.columns if each.side == "stream"]
        self._columns = RawColumns(stream, {*self._kept, self._join, self._placed_by})

    def read(self, records: pa.Table) -> CandidateParts:
        """Decode records with the columns of RAW."""
        headers = array(records["headers"])
        records = records.append_column("event_id", event_ids(headers))
        records = records.append_column("replayed", pc.is_valid(first_header(headers, h.REPLAYED_AT)))
        rows, rejects = self._columns.read(records)
        created = rows[self._placed_by]
        in_day = pc.and_(
            pc.greater_equal(created, _instant(self._day.start)), pc.less(created, _instant(self._day.end))
        )
        in_day = in_day.fill_null(False)
        versions = pa.Table.from_arrays([
            rows[self._key], rows[self._join], rows["version_at"], rows["deleted"], rows["partition"], rows["offset"],
            rows["event_id"], in_day, _is_misplaced(created, rows["timestamp"]),
        ], schema=VERSIONS)  # fmt: skip
        candidates = rows.filter(in_day).select([*dict.fromkeys([self._key, self._join, *self._kept]), "version_at",
                                                 "partition", "offset", "event_id", "replayed"])  # fmt: skip
        return CandidateParts(candidates, versions, self._broken(rejects), rejects)

    def _broken(self, rejects: list[Reject]) -> pa.Table:
        rows = []
        for reject in rejects:
            key, created = self._readable(reject)
            at = created or reject.kafka_timestamp
            if at is not None and self._day.start <= at < self._day.end:
                # a record without a readable id counts as a separate key
                identity = f"@:{reject.topic}:{reject.partition}:{reject.offset}" if key is None else str(key)
                rows.append((identity, key, reject.partition, reject.offset, reject.reason))
        columns = list(zip(*rows, strict=True)) or [()] * len(BROKEN)
        return pa.table([pa.array(each, kind.type) for each, kind in zip(columns, BROKEN, strict=True)], schema=BROKEN)

    def _readable(self, reject: Reject) -> tuple[int | None, Any]:
        """Return the id and the creation time in a broken record; None for each that can't be read."""
        try:
            fields = _decoder.decode(reject.value or b"")
            raw_id, raw_created = fields.get(self._stream.key_field), fields.get(self._day_field)
            key = msgspec.json.decode(raw_id) if raw_id else None
            created = msgspec.json.decode(raw_created) if raw_created else None
        except (ValueError, RecursionError):
            return None, None
        is_id = isinstance(key, int) and not isinstance(key, bool) and LONG_MIN <= key <= LONG_MAX
        return key if is_id else None, _time(created)


_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass
class Decided:
    """The records of one bucket: `chosen` ones become rows or pending, `excluded` ones do not.

    `distinct` is the number of distinct keys. It is counted separately from the rows, so that the day's balance can
    detect an error.
    """

    chosen: pa.Table
    excluded: list[Excluded] = field(default_factory=list)
    distinct: int = 0
    misplaced: int = 0


def without_forgotten(versions: pa.Table, forgotten: Collection[int]) -> pa.Table:
    """Return the versions, with those of forgotten keys of the table marked as deleted. The schema is VERSIONS."""
    if not forgotten:
        return versions
    is_forgotten = pc.is_in(versions["table_key"], pa.array(forgotten, pa.int64()))
    columns = {
        "deleted": pc.or_(versions["deleted"], is_forgotten),
        "in_day": pc.and_(versions["in_day"], pc.invert(is_forgotten)),
    }
    for name, column in columns.items():
        versions = versions.set_column(versions.schema.get_field_index(name), VERSIONS.field(name), column)
    return versions


def decide(versions: pa.Table, broken: pa.Table, sources: pa.Table) -> Decided:
    """Choose the newest version of each key, after removing copies of events.

    `versions` must hold every version of each of its keys.
    """
    events = _first_copies(versions)
    newest = newest_versions(events, "key")
    of_day = pc.unique(events.filter(events["in_day"])["key"])
    is_row = newest["in_day"]  # false for tombstones
    others = newest.filter(pc.and_(pc.invert(is_row), pc.is_in(newest["key"], of_day)))
    excluded = [
        Excluded("deleted" if row["deleted"] else "moved", str(row["key"]), row["key"], row["partition"],
                 row["offset"], _DELETED if row["deleted"] else _MOVED, row["version_at"])
        for row in others.to_pylist()
    ]  # fmt: skip
    rejected = _rejected(broken, events)
    chosen = newest.filter(is_row)
    return Decided(
        _with_sources(chosen, sources),
        excluded + rejected,
        distinct=len(of_day) + len(rejected) - len(excluded),
        misplaced=pc.sum(chosen["misplaced"]).as_py() or 0,
    )


_COPY = ("key", "event_id", "version_at", "deleted")


def _first_copies(versions: pa.Table) -> pa.Table:
    """Return one row per event: its first copy in the log. A record without an event id has no copies.

    Records that share an event id are copies only if key and version are equal too. A producer that gives the same
    event id to two keys, or to two versions of a key, has sent two events.
    """
    single, repeated = by_repetition(versions, "key")
    known = repeated.filter(pc.is_valid(repeated["event_id"]))
    known = known.sort_by([(name, "ascending") for name in (*_COPY, "partition", "offset")])
    is_first = reduce(pc.or_, (begins_run(array(known[name])) for name in _COPY))
    return pa.concat_tables([single, repeated.filter(pc.is_null(repeated["event_id"])), known.filter(is_first)])


def _rejected(broken: pa.Table, events: pa.Table) -> list[Excluded]:
    """Return one broken record per key, the first in the log; none for a key that has a valid record of any day."""
    if not broken.num_rows:
        return []
    kept_anyway = pc.is_in(broken["key"], pc.unique(events["key"])).fill_null(False)
    kept_anyway = pc.and_(kept_anyway, pc.is_valid(broken["key"]))
    first = broken.filter(pc.invert(kept_anyway))
    first = first.sort_by([(name, "ascending") for name in ("identity", "partition", "offset")])
    first = first.filter(begins_run(array(first["identity"])))
    return [Excluded("rejected", *(row[name] for name in BROKEN.names)) for row in first.to_pylist()]


def _with_sources(chosen: pa.Table, sources: pa.Table) -> pa.Table:
    """Add the coordinates of each key's first record in the output topic, and the number of its records there."""
    columns = [chosen["table_key"], chosen["partition"], chosen["offset"]]
    if sources.num_rows:
        made_from = places_of(sources["stream_partition"], sources["stream_offset"])
        grouped = pa.table({"place": made_from, "partition": sources["partition"], "offset": sources["offset"]})
        found = grouped.group_by("place").aggregate([("partition", "min"), ("offset", "min"), ("place", "count")])
        at = pc.index_in(places_of(chosen["partition"], chosen["offset"]), value_set=array(found["place"]))
        columns += [found[name].take(at) for name in ("partition_min", "offset_min", "place_count")]
    else:
        columns += [pa.nulls(chosen.num_rows, CHOSEN.field(name).type) for name in CHOSEN.names[3:]]
    return pa.Table.from_arrays(columns, schema=CHOSEN)


def _is_misplaced(created: pa.ChunkedArray, timestamps: pa.ChunkedArray) -> pa.ChunkedArray:
    apart = pc.subtract(created.cast(pa.int64()), pc.multiply(timestamps.cast(pa.int64()), 1000))
    return pc.greater(pc.abs(apart), MISPLACED_US).fill_null(False)


def _instant(at: Any) -> pa.Scalar:
    return pa.scalar(at, TIMES)


def _time(text: Any) -> Any:
    return parse_timestamp(text) if isinstance(text, str) and is_timestamp(text) else None


PENDING = "the table had no record of its key, or it was deleted before"


@dataclass(frozen=True)
class DayRows:
    """The rows of one bucket, its pending records, and the keys that the output topic has more than once."""

    rows: pa.Table
    pending: list[Excluded]
    duplicates: list[Duplicate]


def day_rows(
    candidates: pa.Table, chosen: pa.Table, versions: pa.Table, definition: Definition, day: Day, generation_id: int
) -> DayRows:
    """Join the chosen candidates with the table's versions; returns rows with the columns that COPY loads.

    `candidates` and `versions` have the schemas of `decoding.arrow`, `chosen` has CHOSEN. Raises AssertionError if a
    chosen record is not among the candidates.
    """
    places = places_of(candidates["partition"], candidates["offset"])
    wanted = places_of(chosen["partition"], chosen["offset"])
    # reorder `chosen` and not `candidates`, whose long texts are expensive to copy
    decided_at = pc.index_in(places, value_set=wanted)
    is_chosen = pc.is_valid(decided_at)
    if (pc.sum(is_chosen).as_py() or 0) != chosen.num_rows:
        raise AssertionError(f"chosen records of {day} are not among the candidates")
    if decided_at.null_count:
        candidates, decided_at = candidates.filter(is_chosen), decided_at.filter(is_chosen)
    chosen = chosen.take(decided_at)
    key = definition.stream.key_column
    join = definition.stream.field(definition.join_field).column
    table_key = definition.table.key_column
    versions, at = matches_of_history(candidates, versions, join, table_key)
    is_known = pc.is_valid(at)
    waiting = candidates.filter(pc.invert(is_known)).select([key, "partition", "offset"])
    pending = [
        Excluded("pending", str(row[key]), row[key], row["partition"], row["offset"], PENDING)
        for row in waiting.to_pylist()
    ]
    if waiting.num_rows:
        candidates, chosen, at = candidates.filter(is_known), chosen.filter(is_known), array(at).filter(is_known)
    rows = _columns(candidates, chosen, versions, at, definition, day, generation_id)
    has_copies = pc.greater(chosen["copies"], 1).fill_null(False)
    duplicates = zip(candidates[key].filter(has_copies).to_pylist(), chosen["copies"].filter(has_copies).to_pylist(),
                     strict=True)  # fmt: skip
    return DayRows(rows, pending, [Duplicate(*each) for each in duplicates])


def _columns(
    records: pa.Table, chosen: pa.Table, versions: pa.Table, at: pa.Array, definition: Definition, day: Day,
    generation_id: int,
) -> pa.Table:  # fmt: skip
    count = records.num_rows
    columns = {"generation_id": pa.repeat(pa.scalar(generation_id, pa.int64()), count),
               "day": pa.repeat(pa.scalar(day.date, pa.date32()), count)}  # fmt: skip
    for each in definition.columns:
        name = definition.column_name(each)
        if each.side == "stream":
            columns[name] = records[definition.stream.field(each.source).column]
        else:
            columns[name] = versions[definition.table.field(each.source).column].take(at)
    origins = {
        "event_id": records["event_id"], "stream_partition": records["partition"], "stream_offset": records["offset"],
        "table_partition": versions["partition"].take(at), "table_offset": versions["offset"].take(at),
        "kafka_partition": chosen["kafka_partition"], "kafka_offset": chosen["kafka_offset"],
    }  # fmt: skip
    columns |= {name: origins[name] for name in COORDINATES}
    return pa.table(columns | {"replayed": records["replayed"]})
