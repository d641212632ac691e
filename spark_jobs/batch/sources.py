"""What a rebuild reads: which ranges and files, and the check that nothing of the day is gone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.errors import MissingRange
from spark_jobs.batch.splits import ColumnsFile, Split, TopicSplit

Unread = Mapping[int, Sequence[tuple[int, int]]]  # partition → ranges: first offset, end

MARGIN = timedelta(days=1)  # a client's clock may run ahead of the broker's by this much
MAX_SPLIT = 1_000_000  # records; a reader fetches some MB beyond the end of its split


@dataclass(frozen=True)
class Sources:
    """Everything that a rebuild reads. `cut` holds the end offsets of the raw topics, `starts` the first ones read.

    `topic_ids` has the ids of the topics as they were before anything was asked of them.

    Of members and of the output topic there may be columns that the archive read already, for what lies before the
    splits: versions with the columns of `rows.member_schema`, places with those of `splits.PLACES`.

    `unread` has ranges of raw topics that nothing holds any more, a partition. The cut ends before the first of them,
    although what is after it is read: no generation covers a record that its build did not see.
    """

    boards: tuple[Split, ...]
    members: tuple[Split, ...]
    details: tuple[Split, ...]
    cut: Mapping[str, Offsets]
    starts: Mapping[str, Offsets]
    records: int  # how many offsets the splits span: more than there are records, where transactions wrote
    member_files: tuple[ColumnsFile, ...] = ()
    place_files: tuple[ColumnsFile, ...] = ()
    kind: Literal["topic", "archive"] = "topic"
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Unread] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranges:
    """What is read of each topic: start and end offsets, a partition."""

    boards: tuple[Offsets, Offsets]
    members: tuple[Offsets, Offsets]
    details: tuple[Offsets, Offsets]


@dataclass(frozen=True)
class Taken:
    """How far the stream took a partition: all records before `offset`, the last of them at that time."""

    offset: int
    at: datetime


@dataclass(frozen=True)
class Known:
    """Where the day's first records are, a partition, as far as rows say; and how far the stream took its topic.

    Some are before the day's start: their clients' clocks were ahead. Before `replaced` the output topic was made from
    another topic than the stream's, which was replaced.
    """

    boards: Mapping[int, int] = field(default_factory=dict)
    details: Mapping[int, int] = field(default_factory=dict)
    taken: Mapping[int, Taken] = field(default_factory=dict)
    replaced: Mapping[int, int] = field(default_factory=dict)


def topic_sources(ranges: Ranges, definition: Definition) -> Sources:
    """The ranges in splits."""
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    boards, members, details = (
        splits_of(topic, *each)
        for topic, each in ((stream, ranges.boards), (table, ranges.members), (output, ranges.details))
    )
    return Sources(
        boards=boards, members=members, details=details,
        cut={stream: ranges.boards[1], table: ranges.members[1]},
        starts={stream: ranges.boards[0], table: ranges.members[0], output: ranges.details[0]},
        records=sum(split.end - split.start for split in (*boards, *members, *details)),
    )  # fmt: skip


def splits_of(topic: str, starts: Offsets, ends: Offsets) -> tuple[TopicSplit, ...]:
    """The ranges of a topic, each in pieces of at most a million offsets, nearly equal."""
    splits = []
    for partition, end in sorted(ends.items()):
        start = starts[partition]
        pieces = -(-(end - start) // MAX_SPLIT)
        for number in range(pieces):
            first, last = (start + (end - start) * n // pieces for n in (number, number + 1))
            splits.append(TopicSplit(topic, partition, first, last))
    return tuple(splits)


def fix_ranges(offset_reader: OffsetReader, day: Day, definition: Definition, known: Known | None = None) -> Ranges:
    """From the day's start (less a margin) to the present end; of members everything, for their history.

    To the end, however far back the day is: what came late, was changed or was deleted since stands there. Records
    that are known to be of the day begin earlier where a client's clock was ahead by more than the margin.
    """
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    start, known = day.start - MARGIN, known or Known()
    details = _earlier(offset_reader, output, offset_reader.at(output, start), known.details)
    details = {partition: max(first, known.replaced.get(partition, 0)) for partition, first in details.items()}
    return Ranges(
        boards=(
            _earlier(offset_reader, stream, offset_reader.at(stream, start), known.boards),
            offset_reader.ends(stream),
        ),
        members=(offset_reader.earliest(table), offset_reader.ends(table)),
        details=(details, offset_reader.ends(output)),
    )


def _earlier(offset_reader: OffsetReader, topic: str, starts: Offsets, known: Mapping[int, int]) -> Offsets:
    if all(known.get(partition, start) >= start for partition, start in starts.items()):
        return starts
    first = offset_reader.earliest(topic)  # what is known may have gone since, or be of a former topic of that name
    return {p: max(first[p], min(start, known.get(p, start))) for p, start in starts.items()}


def refuse_lost_day(
    offset_reader: OffsetReader, day: Day, definition: Definition, retention_days: int, now: datetime, known: Known,
    begins: Mapping[int, int],
) -> None:  # fmt: skip
    """Raise MissingRange unless the stream's topic holds all of the day: building what is left would lose rows.

    A partition that never dropped a record holds it. One that did holds it if the retention does not reach the day, and
    nothing says that records of the day are gone. `begins` is where the day begins as the archive has it, by partition.
    """
    topic = definition.stream.name
    dropped = {partition: first for partition, first in offset_reader.earliest(topic).items() if first > 0}
    if not dropped:
        return
    if day.start < now - timedelta(days=retention_days):
        raise MissingRange(
            f"the topic keeps {retention_days} days, and records of this day may be gone; it can't be rebuilt any more",
            topic=topic, day=day, first_offsets=dropped,
        )  # fmt: skip
    times = offset_reader.first_times(topic)
    for partition, first in dropped.items():
        reason = _why_lost(day, partition, first, times.get(partition), known, begins)
        if reason:
            raise MissingRange(f"{reason}; what is left of the day is not built", topic=topic, day=day,
                               first_offsets={partition: first})  # fmt: skip


def _why_lost(
    day: Day, partition: int, first: int, first_at: datetime | None, known: Known, begins: Mapping[int, int]
) -> str | None:
    """What says that the partition, which begins at `first`, lost records of the day; None when nothing does."""
    at = known.boards.get(partition, first)
    if at < first:
        return f"a record of the day was at offset {at}, and is gone"
    taken = known.taken.get(partition)
    if taken and taken.offset < first and taken.at < day.end + MARGIN:
        return f"the stream took the records before {taken.offset}, and those after it are gone"
    if partition in begins:
        begin = begins[partition]
        return f"the day begins at offset {begin} in the archive, and that is gone" if begin < first else None
    if first_at is None or first_at > day.start:
        return f"the log begins after the day's start, at {first_at or 'no record'}"
    return None


def refuse_lost_range(offset_reader: OffsetReader, found: Sources) -> None:
    """Raise MissingRange when Kafka no longer holds a split's start, because retention went on."""
    splits = [split for split in (*found.boards, *found.members, *found.details) if isinstance(split, TopicSplit)]
    earliest = {topic: offset_reader.earliest(topic) for topic in {split.topic for split in splits}}
    for split in splits:
        first = earliest[split.topic].get(split.partition, split.end)
        if split.start < first:
            raise MissingRange(topic=split.topic, partition=split.partition, wanted=split.start, first=first)
