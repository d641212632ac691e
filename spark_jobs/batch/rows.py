"""The rows of a day: chosen boards with their authors, with the columns of the generation's table."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.database.generation_store import Duplicate, Excluded
from include.database.named import COORDINATES
from spark_jobs.decoding.arrow import array, places_of
from spark_jobs.joining.join_rule import authors_of_history

PENDING = "its member was not known, or was deleted before"


@dataclass(frozen=True)
class DayRows:
    """The rows of one bucket, its pending boards, and the boards that the output topic has more than once."""

    rows: pa.Table
    pending: list[Excluded]
    duplicates: list[Duplicate]


def day_rows(
    candidates: pa.Table, chosen: pa.Table, members: pa.Table, definition: Definition, day: Day, generation_id: int
) -> DayRows:
    """Join the chosen candidates with the members' versions; returns rows with the columns that COPY loads.

    `candidates` and `members` have the schemas above, `chosen` that of `boards.CHOSEN`. Raises AssertionError if a
    chosen board is not among the candidates.
    """
    boards = places_of(candidates["partition"], candidates["offset"])
    wanted = places_of(chosen["partition"], chosen["offset"])
    # reorder `chosen` and not `candidates`, whose long texts are expensive to copy
    decided_at = pc.index_in(boards, value_set=wanted)
    is_chosen = pc.is_valid(decided_at)
    if (pc.sum(is_chosen).as_py() or 0) != chosen.num_rows:
        raise AssertionError(f"chosen boards of {day} are not among the candidates")
    if decided_at.null_count:
        candidates, decided_at = candidates.filter(is_chosen), decided_at.filter(is_chosen)
    chosen = chosen.take(decided_at)
    key = definition.stream.key_column
    join = definition.stream.field(definition.join_field).column
    table_key = definition.table.key_column
    members, at = authors_of_history(candidates, members, join, table_key)
    is_known = pc.is_valid(at)
    waiting = candidates.filter(pc.invert(is_known)).select([key, "partition", "offset"])
    pending = [
        Excluded("pending", str(row[key]), row[key], row["partition"], row["offset"], PENDING)
        for row in waiting.to_pylist()
    ]
    if waiting.num_rows:
        candidates, chosen, at = candidates.filter(is_known), chosen.filter(is_known), array(at).filter(is_known)
    rows = _columns(candidates, chosen, members, at, definition, day, generation_id)
    has_copies = pc.greater(chosen["copies"], 1).fill_null(False)
    duplicates = zip(candidates[key].filter(has_copies).to_pylist(), chosen["copies"].filter(has_copies).to_pylist(),
                     strict=True)  # fmt: skip
    return DayRows(rows, pending, [Duplicate(*each) for each in duplicates])


def _columns(
    boards: pa.Table, chosen: pa.Table, members: pa.Table, at: pa.Array, definition: Definition, day: Day,
    generation_id: int,
) -> pa.Table:  # fmt: skip
    count = boards.num_rows
    columns = {"generation_id": pa.repeat(pa.scalar(generation_id, pa.int64()), count),
               "day": pa.repeat(pa.scalar(day.date, pa.date32()), count)}  # fmt: skip
    for each in definition.columns:
        name = definition.column_name(each)
        if each.side == "stream":
            columns[name] = boards[definition.stream.field(each.source).column]
        else:
            columns[name] = members[definition.table.field(each.source).column].take(at)
    origins = {
        "event_id": boards["event_id"], "stream_partition": boards["partition"], "stream_offset": boards["offset"],
        "table_partition": members["partition"].take(at), "table_offset": members["offset"].take(at),
        "kafka_partition": chosen["kafka_partition"], "kafka_offset": chosen["kafka_offset"],
    }  # fmt: skip
    columns |= {name: origins[name] for name in COORDINATES}
    return pa.table(columns | {"replayed": boards["replayed"]})
