"""Moves the offset ledger where it no longer fits its topic: `pipeline stream repair`."""

import datetime as dt
import logging
import os
import re
import socket
import textwrap
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from include.contracts.clock import Clock
from include.contracts.day import Day
from include.contracts.definition import SITE_NAME, Definition
from include.contracts.errors import LOOK, OK, ConfigurationError, LedgerBeyondEnd, TopicReplaced, WrongArguments
from include.contracts.fields import FIRST_INSTANT
from include.contracts.offsets import OffsetRange
from include.contracts.validation import Reject
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import Move, OffsetLedger, Output
from include.integrity.days.pruning import take_out_of_cuts
from include.kafka.committed import committed_of
from include.kafka.offsets import OffsetReader
from include.kafka.reader import read_as_rejects
from include.runtime.command import author
from include.runtime.retry import retry_transient
from include.runtime.settings import EXACTLY_ONCE, Settings
from spark_jobs.speed.delivery import ExactlyOnce
from spark_jobs.speed.health.state import Query, topics_of
from spark_jobs.speed.pending_store import PendingStore
from spark_jobs.speed.positions import (
    OffsetMismatch,
    Position,
    ReplacedTable,
    delivery_group,
    position_of,
    replaced_table,
)
from spark_jobs.speed.sent_records import sent_since

log = logging.getLogger(__name__)

_RECORD = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9})/(?P<offset>[0-9]{1,18})")
_SHOWN_BYTES = 200
_DONE = "The stream has processed it, or has begun to, which its next start decides: there is nothing to reject."


def end_transaction(settings: Settings, offset_reader: OffsetReader, ledger: OffsetLedger) -> None:
    """End the transaction of a driver that no longer responds: it may commit until the next one starts.

    Nothing is done if no driver delivered exactly once. Raises as `ExactlyOnce.open`; without exactly-once delivery
    missing rights are logged.
    """
    if not delivery_group(ledger, offset_reader, settings):
        return
    topic = settings.pipeline.stream.name
    partitions, topic_id = offset_reader.partitions(topic), offset_reader.topic_id(topic)
    try:
        with closing(ExactlyOnce(offset_reader.kafka, settings.pipeline)) as delivery:
            retry_transient(lambda: delivery.open(partitions, topic_id, "", {}))
    except ConfigurationError as exc:
        if settings.stream.delivery == EXACTLY_ONCE:
            raise
        log.warning("a transaction of an earlier driver may be open still: %s", exc)


@dataclass(frozen=True)
class Place:
    """Coordinates of a record in a topic that a query reads."""

    query: Query
    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str, pipeline: Definition) -> "Place":
        """Parse topic/partition/offset, of a topic of the pipeline. Raises WrongArguments."""
        topics = topics_of(pipeline)
        match = _RECORD.fullmatch(text)
        query = next((query for query, topic in topics.items() if match and topic == match["topic"]), None)
        if match is None or query is None:
            raise WrongArguments(f"--reject {text!r}: write topic/partition/offset; the topics are "
                                 f"{' and '.join(topics.values())}")  # fmt: skip
        return cls(query, match["topic"], int(match["partition"]), int(match["offset"]))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class ManualReject:
    """Prints one record, and makes it a reject."""

    def __init__(self, settings: Settings, offset_reader: OffsetReader, ledger: OffsetLedger) -> None:
        self._settings = settings
        self._offset_reader = offset_reader
        self._ledger = ledger

    def look(self, place: Place) -> tuple[Reject, bool]:
        """Return the record as a reject, and True if the query has processed it.

        Raises WrongArguments if the topic has no such record, any more or yet.
        """
        topic_id = self._offset_reader.topic_id(place.topic)
        whole = self._offset_reader.available(place.topic)
        found: list[Reject] = []
        if place.partition in whole.end and whole.holds(place.partition, place.offset):
            range_ = OffsetRange({place.partition: place.offset}, {place.partition: place.offset + 1})
            reason = f"rejected by hand by {author()}"
            found = read_as_rejects(self._offset_reader.kafka, place.topic, range_, reason)
        if not found:
            first, end = (offsets.get(place.partition) for offsets in (whole.start, whole.end))
            raise WrongArguments("--reject: the topic has no such record", record=place, first=first, end=end)
        self._offset_reader.require_ids({place.topic: topic_id})
        taken = [entry.next_offset for entry in self._ledger.entries(place.query, place.topic)
                 if (entry.topic_id, entry.partition) == (topic_id, place.partition)]  # fmt: skip
        if place.query == "join" and (group := delivery_group(self._ledger, self._offset_reader, self._settings)):
            repaired_at = self._ledger.repaired_at(place.query)
            committed = committed_of(self._offset_reader.committed(group, place.topic), topic_id, repaired_at)
            taken.append(committed.offsets.get(place.partition, 0))
        return found[0], any(next_offset > place.offset for next_offset in taken)

    def run(self, place: Place, dry_run: bool) -> bool:
        """Print the record, and reject it unless it is a dry run. Returns True if it was rejected."""
        record, is_taken = self.look(place)
        lease = DriverLease(self._settings.database, f"repair-{socket.gethostname()}-{os.getpid()}")
        store = PendingStore(self._settings.database, lease)
        is_pending = store.is_pending(place.topic, place.partition, place.offset)
        print(f"{place}  timestamp {record.kafka_timestamp}")
        print(f"  key    {_shown(record.key)}\n  value  {_shown(record.value)}")
        if is_taken and not is_pending:
            print(_DONE)
            return False
        print("It is pending: its member is not known." if is_pending else "The stream has not processed it yet.")
        if dry_run:
            print("Nothing was changed. Without --dry-run it becomes a reject, and the stream skips it.")
            return False
        lease.take()  # so that an undetected driver can no longer write
        try:
            if place.query == "join":
                end_transaction(self._settings, self._offset_reader, self._ledger)
            record, is_taken = self.look(place)  # again: until now, a driver may have processed it
            if is_taken and not store.is_pending(place.topic, place.partition, place.offset):
                print(_DONE)
                return False
            store.reject_by_hand(record)
        finally:
            lease.release()  # else the stream would wait until the lease times out
        print("It is in table reject. Start the stream.")
        return True


def _shown(data: bytes | None) -> str:
    if data is None:
        return "none"
    cut = data[:_SHOWN_BYTES]
    return f"{len(data)} bytes: {cut!r}{'…' if len(data) > len(cut) else ''}"


HEADINGS = ("query", "topic", "partition", "problem", "ledger", "first", "end", "move to", "lost", "days")
_OF_JOIN = (
    "join: lost records of {topic} were never joined, and a rebuild cannot read them either. {again} Do that before "
    "rebuilding the days above."
)
_OF_SERVE = (
    "serve: lost records of {topic} are missing from the live rows only; the raw topics have them. Rebuild the days "
    "above with the DAG reprocess_days; the nightly rebuild does the present day. Late records may be of earlier days."
)
_BY_THE_SITE = "Those saved through the site's API can be produced again: pipeline gateway reconcile --all --dry-run."
_BY_OTHERS = "Have their senders send them again."


@dataclass(frozen=True)
class Finding:
    """A mismatch, and the range of days whose records may be lost; None if it is unknown."""

    mismatch: OffsetMismatch
    days: tuple[Day, Day] | None


class Repair:
    """Finds mismatches between the queries' ledgers and their topics, and moves the ledgers."""

    def __init__(self, settings: Settings, offset_reader: OffsetReader, ledger: OffsetLedger, clock: Clock) -> None:
        self._by = author()
        self._lease = DriverLease(settings.database, f"repair-{self._by}-{os.getpid()}")
        self.pipeline = settings.pipeline.name
        self._settings = settings
        self._offset_reader = offset_reader
        self._ledger = ledger
        self._clock = clock

    def look(self, consumer: Query) -> tuple[Position, list[Finding]]:
        """Return the query's position and its mismatches.

        Raises BrokerUnavailable, DatabaseUnavailable, ContractMismatch.
        """
        topic = topics_of(self._settings.pipeline)[consumer]
        group = delivery_group(self._ledger, self._offset_reader, self._settings) if consumer == "join" else ""
        position = position_of(self._ledger, self._offset_reader, consumer, topic, group)
        if not position.mismatches:
            return position, []
        # after the position: a record that is removed in between makes the range of days longer, never shorter
        first_at = self._offset_reader.first_times(position.topic)
        return position, [Finding(mismatch, self._days(mismatch, first_at)) for mismatch in position.mismatches]

    def replaced_table(self) -> ReplacedTable | None:
        """Return the table's topic if generations were built from a former one; None otherwise.

        Raises BrokerUnavailable, DatabaseUnavailable.
        """
        return replaced_table(self._settings.database, self._offset_reader, self._settings.pipeline.table.name)

    def refuse_live_driver(self) -> None:
        """Raise DriverAlive if a driver may still write."""
        self._lease.refuse_live_driver()

    def move(self, positions: Sequence[Position], table: ReplacedTable | None = None) -> int:
        """Move every mismatched partition to the topic's first record; returns the number of partitions moved.

        The topic that `table` replaced is removed from the cuts of generations. Takes the leases of both queries, so
        that an undetected driver can no longer write. Raises LedgerConflict if the ledger moved since it was read,
        DriverSuperseded if another driver or repair started meanwhile.
        """
        self._lease.take()
        try:
            if table is not None:
                take_out_of_cuts(self._settings, table.topic, table.topic_id)
            for position in positions:
                made_from_replaced = None
                errors = {mismatch.error for mismatch in position.mismatches}
                if position.topic == self._settings.pipeline.stream.name:
                    end_transaction(self._settings, self._offset_reader, self._ledger)
                    if TopicReplaced in errors:
                        # before the ledger moves: cuts of the former topic would cover the new topic's low offsets
                        take_out_of_cuts(self._settings, position.topic, position.topic_id)
                        self._settle_pages()
                    if not errors.isdisjoint((TopicReplaced, LedgerBeyondEnd)):
                        made_from_replaced = self._output()
                moves = [Move(mismatch.partition, mismatch.topic_id, mismatch.at, mismatch.first,
                              f"{mismatch.error.__name__}: {mismatch.text}",
                              self._lost_from(position.topic, mismatch))
                         for mismatch in position.mismatches]  # fmt: skip
                self._ledger.repair(
                    position.consumer, position.topic, position.topic_id, position.entries, moves, self._by,
                    self._lease, send_pending_again=position.topic == self._settings.pipeline.output.name,
                    made_from_replaced=made_from_replaced,
                )  # fmt: skip
        finally:
            self._lease.release()  # else the stream would wait until the lease times out
        return sum(len(position.mismatches) for position in positions)

    def _lost_from(self, topic: str, mismatch: OffsetMismatch) -> int | None:
        """Return the first offset whose record is lost, as far as records are kept that wait or were rejected.

        The topic may have grown since: a kept record is lost if another one has its offset, and so are those after it.
        None if the partition did not lose its last records. Raises BrokerUnavailable, DatabaseUnavailable.
        """
        if mismatch.error is not LedgerBeyondEnd:
            return None
        kafka, partition = self._offset_reader.kafka, mismatch.partition

        def is_lost(kept: tuple[int, bytes | None, dt.datetime | None]) -> bool:
            offset, key, at = kept
            place = OffsetRange({partition: offset}, {partition: offset + 1})
            return [(key, at)] != [
                (each.key, each.kafka_timestamp) for each in read_as_rejects(kafka, topic, place, "")
            ]

        store = PendingStore(self._settings.database, self._lease)
        kept = store.kept_of(topic, partition, mismatch.first, mismatch.end)
        at = bisect_left(kept, True, key=is_lost)
        return kept[at][0] if at < len(kept) else mismatch.end

    def _settle_pages(self) -> None:
        """Mark the records of the last page as sent if they were, though the driver did not say so.

        Kafka deletes the offsets of a group with their topic, and the number of the page with them, so the output is
        read. Raises as `sent_since`.
        """
        store, pipeline = PendingStore(self._settings.database, self._lease), self._settings.pipeline
        planned = [at for at, _ in store.planned_pages()]
        if not planned:
            return
        oldest = min(each.kafka_timestamp or FIRST_INSTANT for each in store.pending_at(planned))
        sent = sent_since(oldest, self._offset_reader, self._ledger, pipeline).places
        there = {*zip(sent["partition"].to_pylist(), sent["offset"].to_pylist(), strict=True)}
        if there.issuperset((at.partition, at.offset) for at in planned):  # in one transaction
            store.mark_sent(planned)
        else:
            store.plan_page(None, planned)

    def _output(self) -> Output:
        topic = self._settings.pipeline.output.name
        topic_id = self._offset_reader.topic_id(topic)
        output = Output(topic, topic_id, self._offset_reader.high_watermarks(topic))
        self._offset_reader.require_ids({topic: topic_id})
        return output

    def _days(self, mismatch: OffsetMismatch, first_at: dict[int, dt.datetime]) -> tuple[Day, Day] | None:
        """Return the days from the ledger's last move to the first record that is left, in which lost ones arrived."""
        if mismatch.advanced_at is None or mismatch.error is LedgerBeyondEnd:
            return None
        until = first_at.get(mismatch.partition)
        if until is None or until <= mismatch.advanced_at:
            until = self._clock.now()  # a replay carries an old timestamp, and lost records came after the last move
        return Day.of(mismatch.advanced_at, self._settings.timezone), Day.of(until, self._settings.timezone)


def table_lines(looked: Sequence[tuple[Position, list[Finding]]]) -> Iterator[str]:
    """Yield the findings as lines of an aligned table."""
    rows = [HEADINGS]
    for position, findings in looked:
        for finding in findings:
            mismatch = finding.mismatch
            rows.append((
                position.consumer, position.topic, str(mismatch.partition), mismatch.error.__name__,
                "none" if mismatch.at is None else str(mismatch.at),
                str(mismatch.first), str(mismatch.end), str(mismatch.first),
                "unknown" if mismatch.lost is None else str(mismatch.lost),
                "unknown" if finding.days is None else f"{finding.days[0]} to {finding.days[1]}",
            ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def run(repair: Repair, consumers: Sequence[Query], dry_run: bool, force: bool) -> int:
    """Print the mismatches, and move the ledger unless it is a dry run; returns the exit code."""
    looked = [(position, findings) for position, findings in map(repair.look, consumers) if findings]
    table = repair.replaced_table() if "join" in consumers else None
    if not (looked or table):
        print("Nothing to repair: the ledger matches its topics.")
        return OK
    if looked:
        for line in table_lines(looked):
            print(line)
    for position, _ in looked:
        again = _BY_THE_SITE if repair.pipeline == SITE_NAME else _BY_OTHERS
        text = (_OF_JOIN if position.consumer == "join" else _OF_SERVE).format(topic=position.topic, again=again)
        print("\n" + textwrap.fill(text, 110, subsequent_indent="  "))
    if table is not None:
        print(f"\n{table.text}. The topic is removed from their cuts, and published ones are marked dirty.")
    if dry_run:
        print("\nNothing was changed. Without --dry-run each partition above is moved.")
        return LOOK
    if not force:
        repair.refuse_live_driver()
    moved = repair.move([position for position, _ in looked], table)
    print(f"\nPartitions moved: {moved}. Table ledger_repair keeps each. Start the stream.")
    return OK


def reject(repair: Repair, rejects: ManualReject, place: Place, dry_run: bool, force: bool) -> int:
    """Print one record and make it a reject unless it is a dry run; returns the exit code."""
    if not (dry_run or force):
        repair.refuse_live_driver()
    rejects.run(place, dry_run)
    return OK
