"""Compares the tables in PostgreSQL with the raw topics. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.promises import Promises
from tests.faults.stream_topics import Log, Place
from tests.support.oracle import Version, stream_authors


class Row(NamedTuple):
    """A row of the view, with the records it names: the stream's, the table's and the output's."""

    key: int
    source: tuple[int, int]
    joined: tuple[int, int]
    detail: tuple[int, int]
    stream_content: str
    table_content: str


@dataclass(frozen=True)
class Seen:
    """The content of the tables. `pending`: (partition, offset) of the pending records, by key."""

    rows: Sequence[Row]
    pending: Mapping[int, set[tuple[int, int]]]
    rejects: set[Place]


@dataclass
class Verdict(Promises):
    """The findings. Each list has the violations of one promise."""

    keys: int = 0
    rows: int = 0
    pending: int = 0
    rejects: int = 0
    duplicates: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    made_up: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    wrong_joined: list[str] = field(default_factory=list)
    wrong_content: list[str] = field(default_factory=list)
    wrong_place: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    pending_missing: list[str] = field(default_factory=list)
    pending_left: list[str] = field(default_factory=list)
    rejects_missing: list[str] = field(default_factory=list)
    rejects_wrong: list[str] = field(default_factory=list)
    sent_twice: list[str] = field(default_factory=list)


def judge(log: Log, seen: Seen, before: Mapping[int, Row], is_exactly_once: bool = False) -> Verdict:
    """Return the verdict over all keys of the stream. `before`: rows that were settled once, by key.

    `is_exactly_once`: no record of the stream may be in the output twice.
    """
    # former topics share the names of places
    sent = Counter((each.key, each.source, each.source[0] < 0 and each.event_id) for each in log.details)
    verdict = Verdict(
        keys=len(log.stream),
        rows=len(seen.rows),
        pending=sum(map(len, seen.pending.values())),
        rejects=len(seen.rejects),
        duplicates=sum(count - 1 for count in sent.values()),
    )
    if is_exactly_once:
        verdict.sent_twice = [f"key {key}: {at}, {count} times" for (key, at, _), count in sent.items() if count > 1]
    rows: dict[int, list[Row]] = defaultdict(list)
    for row in seen.rows:
        rows[row.key].append(row)
    for key in rows.keys() | log.stream.keys() | seen.pending.keys():
        _judge_key(key, rows.get(key, []), seen.pending.get(key, set()), log, verdict)
    _judge_rows(seen.rows, log, verdict)
    _judge_changes(rows, before, verdict)
    missing = {place for place in log.bad - seen.rejects if "@" not in place.topic}  # of a former one: sent again
    verdict.rejects_missing = [str(place) for place in sorted(missing)]
    verdict.rejects_wrong = [str(place) for place in sorted(seen.rejects - log.bad)]
    return verdict


def _judge_key(key: int, rows: Sequence[Row], pending: set[tuple[int, int]], log: Log, verdict: Verdict) -> None:
    """The row must be the newest version, and there is none if that waits. None older than a joined one waits."""
    if len(rows) > 1:
        verdict.doubled.append(f"key {key}: {len(rows)} rows")
    shown = rows[0].source if rows else None
    versions = log.stream.get(key, [])
    # which of several events of one time is the newest depends on the topic whose offsets count
    replaced = any(version.partition < 0 for version in versions)
    at = {(version.partition, version.offset): version.at for version in versions}
    waiting: set[tuple[int, int]] = set()
    times = set()
    for copies in _events(versions):
        times.add(copies[0].at)
        newest, places = copies[0], {(copy.partition, copy.offset) for copy in copies}
        place = (newest.partition, newest.offset)
        if shown in places:
            if newest.deleted:
                verdict.outdated.append(f"key {key}: deleted at {place}, and shown")
            break
        if newest.deleted:
            if shown is not None:
                verdict.outdated.append(f"key {key}: deleted at {place}, shown {shown}")
            break
        choices, is_hidden = _joinable(copies, log), shown is None and waiting & pending
        if None not in choices or (is_hidden and not places & pending and choices != {None}):
            if shown is not None:
                verdict.outdated.append(f"key {key}: {place} is newer than {shown}")
            elif not is_hidden:
                verdict.lost.append(f"key {key}: {place} is not shown")
            break
        waiting |= places
        if not places & pending:
            is_tie = replaced and any(at.get(other) == newest.at for other in pending)
            if not is_tie and any(partition >= 0 for partition, _ in places):  # a former one was sent again
                verdict.pending_missing.append(f"key {key}: {place}")
        elif shown is not None:
            verdict.outdated.append(f"key {key}: {place} waits, shown {shown}")
    else:
        if shown is not None:
            verdict.made_up.append(f"key {key}: there is no record {shown}")
    left = {place for place in pending - waiting if not (replaced and at.get(place) in times)}
    verdict.pending_left += [f"key {key}: {place}" for place in sorted(left)]


def _events(versions: Iterable[Version]) -> list[list[Version]]:
    """The newest event first, and the newest of its copies: an event that was sent again is the same one."""
    events: dict[tuple[object, ...], list[Version]] = defaultdict(list)
    for version in sorted(versions, key=lambda version: version.version, reverse=True):
        events[version.event_id, version.at, version.deleted].append(version)
    return list(events.values())


def _joinable(copies: Iterable[Version], log: Log) -> set[Version | None]:
    """Return what an event may be shown with: it waits no more if one of its copies need not."""
    choices = [joinable(copy, log) for copy in copies]
    return set().union(*choices) - (set() if all(None in each for each in choices) else {None})


def joinable(version: Version, log: Log) -> set[Version | None]:
    """Return the table's versions that a version of the stream may be shown with; None: it may be pending."""
    assert version.member is not None
    known_until = log.known.get((version.key, version.partition, version.offset), -1)
    return stream_authors(version, log.table.get(version.member, []), known_until)


def _judge_rows(rows: Iterable[Row], log: Log, verdict: Verdict) -> None:
    sources: dict[tuple[int, int, int], list[Version]] = defaultdict(list)  # two former topics can share a name
    for each in _flat(log.stream.values()):
        sources[each.key, each.partition, each.offset].append(each)
    table = {(each.partition, each.offset): each for each in _flat(log.table.values())}
    first: dict[tuple[int | None, tuple[int, int], str], tuple[int, int]] = {}
    made_from = {}
    for detail in log.details:  # in the order of each partition; copies of a record are in one partition
        first.setdefault((detail.key, detail.source, detail.event_id), detail.place[1:])
        made_from[detail.place[1:]] = detail.joined
    for row in rows:
        candidates, joined = sources.get((row.key, *row.source), []), table.get(row.joined)
        named = [each for each in candidates if first.get((row.key, row.source, each.event_id)) == row.detail]
        source = next(reversed(named or candidates), None)
        if source is None or joined is None:
            verdict.made_up.append(f"key {row.key}: made from {row.source} and {row.joined}")
            continue
        if joined not in joinable(source, log):
            verdict.wrong_joined.append(f"key {row.key}: made from {row.source} with the table's record {row.joined}")
        if (row.stream_content, row.table_content) != (source.name, joined.name):
            verdict.wrong_content.append(f"key {row.key}: made from {row.source} and {row.joined}")
        expected = first.get((row.key, row.source, source.event_id))
        if expected != row.detail or made_from.get(row.detail) != row.joined:
            verdict.wrong_place.append(
                f"key {row.key}: names {row.detail} of {log.pipeline.output.name}, first is {expected}"
            )


def _judge_changes(rows: Mapping[int, Sequence[Row]], before: Mapping[int, Row], verdict: Verdict) -> None:
    """A settled row stays as it is until a newer version of its key is shown."""
    for key, old in before.items():
        for row in rows.get(key, ()):
            if row.source == old.source and row != old:
                verdict.changed.append(f"key {key}: {old.joined} at {old.detail}, now {row.joined} at {row.detail}")


def _flat(versions: Iterable[Iterable[Version]]) -> Iterator[Version]:
    for each in versions:
        yield from each
