"""Moves the offset ledger where it no longer fits its topic: `pipeline stream repair`."""

import datetime as dt
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from include.contracts.clock import Clock
from include.contracts.day import Day
from include.contracts.definition import SITE_NAME
from include.contracts.errors import LOOK, OK, LedgerBeyondEnd, TopicReplaced
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import Move, OffsetLedger, Output
from include.integrity.days.replaced_topic import take_out_of_cuts
from include.kafka.offsets import OffsetReader
from include.runtime.command import author
from include.runtime.settings import Settings
from spark_jobs.speed.driver_state import Query, topics_of
from spark_jobs.speed.manual_reject import ManualReject, Place
from spark_jobs.speed.positions import OffsetMismatch, Position, ReplacedTable, position_of, replaced_table

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
        position = position_of(self._ledger, self._offset_reader, consumer, topic)
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
                if position.topic == self._settings.pipeline.stream.name and any(
                    m.error is TopicReplaced for m in position.mismatches
                ):
                    # before the ledger moves: cuts of the former topic would cover the new topic's low offsets
                    take_out_of_cuts(self._settings, position.topic, position.topic_id)
                    made_from_replaced = self._output()
                moves = [Move(mismatch.partition, mismatch.topic_id, mismatch.at, mismatch.first,
                              f"{mismatch.error.__name__}: {mismatch.text}")
                         for mismatch in position.mismatches]  # fmt: skip
                self._ledger.repair(
                    position.consumer, position.topic, position.topic_id, position.entries, moves, self._by,
                    self._lease, send_pending_again=position.topic == self._settings.pipeline.output.name,
                    made_from_replaced=made_from_replaced,
                )  # fmt: skip
        finally:
            self._lease.release()  # else the stream would wait until the lease times out
        return sum(len(position.mismatches) for position in positions)

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
