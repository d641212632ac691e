"""Ranges and files that a rebuild reads, and checks that no record of the day is gone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import MissingRange
from include.contracts.offsets import Offsets
from include.kafka.offsets import OffsetReader
from spark_jobs.sources.splits import ColumnsFile, Split, TopicSplit

Unread = Mapping[int, Sequence[tuple[int, int]]]  # partition → ranges: first offset, end

MARGIN = timedelta(days=1)  # a client's clock may run ahead of the broker's by this much
MAX_SPLIT = 1_000_000  # offsets; smaller splits would waste the MBs that a reader fetches beyond the end


@dataclass(frozen=True)
class Sources:
    """The input of a rebuild. `cut` holds the end offsets of the raw topics, `starts` the first offsets read.

    `topic_ids` holds the topics' ids from before any offset was read.

    `member_files` and `place_files` hold records that precede the splits, decoded by the archive: versions with the
    columns of `arrow.member_schema`, coordinates with those of `dated_rows.OUTPUT_COORDINATES`.

    `unread` holds the offset ranges, per topic and partition, that neither a topic nor the archive has any more. The
    cut ends before the first of them, although later records are read: a generation never covers a record that its
    build did not see.
    """

    boards: tuple[Split, ...]
    members: tuple[Split, ...]
    details: tuple[Split, ...]
    cut: Mapping[str, Offsets]
    starts: Mapping[str, Offsets]
    records: int  # offsets that the splits span; transaction markers make it more than the number of records
    member_files: tuple[ColumnsFile, ...] = ()
    place_files: tuple[ColumnsFile, ...] = ()
    kind: Literal["topic", "archive"] = "topic"
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Unread] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranges:
    """Start and end offsets to read, per topic and partition."""

    boards: tuple[Offsets, Offsets]
    members: tuple[Offsets, Offsets]
    details: tuple[Offsets, Offsets]


@dataclass(frozen=True)
class Taken:
    """The stream's progress in a partition: it took all records before `offset`, the last of them at `at`."""

    offset: int
    at: datetime


@dataclass(frozen=True)
class Known:
    """First offsets of the day's records per partition, as far as stored rows show, and the stream's progress.

    A record may precede the day's start in the log, if its client's clock was ahead. Records of the output topic before
    the offsets in `replaced` were made from a former stream topic, which was replaced.
    """

    boards: Mapping[int, int] = field(default_factory=dict)
    details: Mapping[int, int] = field(default_factory=dict)
    taken: Mapping[int, Taken] = field(default_factory=dict)
    replaced: Mapping[int, int] = field(default_factory=dict)


def topic_sources(ranges: Ranges, definition: Definition) -> Sources:
    """Return sources that read the ranges from the topics."""
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
    """Split the ranges of a topic into nearly equal pieces of at most `MAX_SPLIT` offsets."""
    splits = []
    for partition, end in sorted(ends.items()):
        start = starts[partition]
        pieces = -(-(end - start) // MAX_SPLIT)
        for number in range(pieces):
            first, last = (start + (end - start) * n // pieces for n in (number, number + 1))
            splits.append(TopicSplit(topic, partition, first, last))
    return tuple(splits)


def fix_ranges(
    offset_reader: OffsetReader, day: Day, definition: Definition, known: Known | None = None,
    cut: Offsets | None = None,
) -> Ranges:  # fmt: skip
    """Return the ranges from the day's start (less a margin) to the present end offsets; all of the members' topic.

    They extend to the end however old the day is, because late records, changes and deletions are there. They start
    earlier where a record of the day is known to precede the margin, because a client's clock was ahead. `cut` has the
    ends of the stream's topic, if the caller asked for them before it looked for known records.

    The cut comes first: a record that arrives during the call is beyond it, so it stays live on top of the generation,
    whatever its time. The members come after it: one that reached Kafka before its board is read.
    """
    stream, table, output = definition.stream.name, definition.table.name, definition.output.name
    start, known = day.start - MARGIN, known or Known()
    boards = cut or offset_reader.ends(stream)
    members = offset_reader.available(table)
    return Ranges(
        boards=(_starts(offset_reader, stream, start, known.boards, boards), boards),
        members=(members.start, members.end),
        details=_details(offset_reader, output, start, known),
    )


def _details(offset_reader: OffsetReader, output: str, start: datetime, known: Known) -> tuple[Offsets, Offsets]:
    ends = offset_reader.ends(output)
    starts = _starts(offset_reader, output, start, known.details, ends)
    return {p: min(end, max(starts[p], known.replaced.get(p, 0))) for p, end in ends.items()}, ends


def _starts(
    offset_reader: OffsetReader, topic: str, instant: datetime, known: Mapping[int, int], ends: Offsets
) -> Offsets:
    """Return each partition's first offset whose record is not older than the instant, or is known; its end without."""
    found = offset_reader.since(topic, instant)
    starts = {partition: min(end, found.get(partition, end)) for partition, end in ends.items()}
    if all(known.get(partition, start) >= start for partition, start in starts.items()):
        return starts
    first = offset_reader.earliest(topic)  # known offsets may be expired, or belong to a former topic of that name
    return {p: min(ends[p], max(first.get(p, 0), min(start, known.get(p, start)))) for p, start in starts.items()}


def refuse_lost_day(
    offset_reader: OffsetReader, day: Day, definition: Definition, retention_days: int, now: datetime, known: Known,
    begins: Mapping[int, int],
) -> None:  # fmt: skip
    """Raise MissingRange unless the stream's topic holds all of the day: a build of the rest would lose rows.

    A partition that starts at offset 0 holds the day. Another one holds it if the day is within the retention time and
    nothing shows that records of the day are gone. `begins` has the day's first offset per partition in the archive.
    """
    topic = definition.stream.name
    # after the ranges and what stored rows show: records that retention removes in between are missed here
    dropped = {partition: first for partition, first in offset_reader.earliest(topic).items() if first > 0}
    if not dropped:
        return
    if day.start < now - timedelta(days=retention_days):
        raise MissingRange(
            f"the topic keeps {retention_days} days, and records of this day may be gone; it can't be rebuilt any more",
            topic=topic, day=day, first_offsets=dropped,
        )  # fmt: skip
    times = offset_reader.first_times(topic)  # after the first offsets: none of these times is too early
    for partition, first in dropped.items():
        reason = _why_lost(day, partition, first, times.get(partition), known, begins)
        if reason:
            raise MissingRange(f"{reason}; the rest of the day is not built", topic=topic, day=day,
                               first_offsets={partition: first})  # fmt: skip


def _why_lost(
    day: Day, partition: int, first: int, first_at: datetime | None, known: Known, begins: Mapping[int, int]
) -> str | None:
    """Return why a partition that starts at `first` must have lost records of the day; None if nothing says so."""
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
    """Raise MissingRange if retention has removed the start of a split."""
    splits = [split for split in (*found.boards, *found.members, *found.details) if isinstance(split, TopicSplit)]
    earliest = {topic: offset_reader.earliest(topic) for topic in {split.topic for split in splits}}
    for split in splits:
        first = earliest[split.topic].get(split.partition, split.end)
        if split.start < first:
            raise MissingRange(topic=split.topic, partition=split.partition, wanted=split.start, first=first)
