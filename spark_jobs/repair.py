"""Moves the offset ledger where it no longer fits its topic: `python -m spark_jobs.repair --dry-run`.

The stream refuses to start when a topic was deleted and made again (TopicReplaced), when retention or DeleteRecords
removed records that were not taken yet (RangeExpired), or when the ledger is beyond the topic's end (LedgerBeyondEnd).
This shows each such partition, where it would go on and what is lost by that; without --dry-run it moves the ledger
there: to the first record that the topic still holds. A record that is taken twice by that does no harm.

It refuses, too, while generations were built from another topic of members (TopicReplaced): their cuts say nothing of
the topic that is there. This takes it out of the cuts, and marks the published days dirty.

With --reject it takes one record out of the stream's way, whatever is wrong with it: the record is kept in table
reject, whole, and passed over from the next start on. A rebuild reads it all the same, and judges it by itself.

The moves are one transaction for each query, and each partition's is kept in table ledger_repair. It refuses while a
driver is alive. With --force it does not: a driver that lives is then superseded, writes no more and ends.

Exit codes: 0 everything fits, or was repaired; 1 a dry run found something to repair; 2 wrong usage; 75 a driver is
alive, or Kafka or PostgreSQL is not available; 78 a setting is wrong, or a topic does not exist.
"""

import argparse
import datetime as dt
import getpass
import os
import socket
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from include.adapters.driver_lease import DriverLease
from include.adapters.kafka_offsets import OffsetReader
from include.adapters.offset_ledger import Move, OffsetLedger, Output
from include.clock import Clock, SystemClock
from include.command import as_command
from include.contracts.day import Day
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import (
    OK,
    LedgerBeyondEnd,
    Retryable,
    TopicReplaced,
)
from include.integrity.replaced_topic import take_out_of_cuts
from include.settings import Settings
from spark_jobs.speed.driver_state import TOPICS, Query
from spark_jobs.speed.manual_reject import ManualReject, Place
from spark_jobs.speed.positions import OffsetMismatch, Position, position_of
from spark_jobs.speed.replaced_table import ReplacedTable, replaced_table

FOUND = 1

ALIVE_S = 15.0  # a driver gives a sign of life every second

HEADINGS = ("query", "topic", "partition", "problem", "ledger", "first", "end", "move to", "lost", "days")
REMEDIES = {
    "join": "join: lost boards were never joined, and a rebuild cannot read them either. Those saved through /boards "
    "can be produced again: python -m include.gateway.reconcile --all --dry-run. Do not rebuild the days above before.",
    "serve": "serve: lost details are missing from the live rows only; the raw topics decide. Rebuild the days above "
    "with the DAG reprocess_days; the present day comes with the nightly rebuild. Late boards may be of earlier days.",
}


class DriverAlive(Retryable):
    """A driver gave a sign of life just now; stop it, wait 15 s and try again, or supersede it with --force."""


@dataclass(frozen=True)
class Finding:
    """A mismatch, and the days from which records may be lost by it; None when none are known to be."""

    mismatch: OffsetMismatch
    days: tuple[Day, Day] | None


class Repair:
    """Looks at the ledgers of the queries, and moves them."""

    def __init__(self, settings: Settings, offset_reader: OffsetReader, ledger: OffsetLedger, clock: Clock) -> None:
        self._by = f"{getpass.getuser()}@{socket.gethostname()}"
        self._lease = DriverLease(settings.database, f"repair-{self._by}-{os.getpid()}")
        self._settings = settings
        self._offset_reader = offset_reader
        self._ledger = ledger
        self._clock = clock

    def look(self, consumer: Query) -> tuple[Position, list[Finding]]:
        """What does not fit. Raises BrokerUnavailable, DatabaseUnavailable, ContractMismatch."""
        position = position_of(self._ledger, self._offset_reader, consumer, TOPICS[consumer])
        if not position.mismatches:
            return position, []
        first_at = self._offset_reader.first_times(position.topic)
        return position, [Finding(mismatch, self._days(mismatch, first_at)) for mismatch in position.mismatches]

    def replaced_table(self) -> ReplacedTable | None:
        """The members' topic, if generations have another. Raises BrokerUnavailable, DatabaseUnavailable."""
        return replaced_table(self._settings.database, self._offset_reader)

    def refuse_live_driver(self) -> None:
        """Raise DriverAlive when a driver gave a sign of life just now."""
        holder = self._lease.holder()
        if holder is not None and not holder.has_ended and holder.age_s < ALIVE_S:
            raise DriverAlive(driver=holder.driver_id, host=holder.host, heartbeat_age_s=round(holder.age_s, 1))

    def move(self, positions: Sequence[Position], table: ReplacedTable | None = None) -> int:
        """Move every partition that does not fit to the topic's first record; returns how many.

        `table` is taken out of the cuts that have the one it replaced. Takes the driver's lease, so that a driver that
        nobody saw writes no more. Raises LedgerConflict when the ledger moved since it was looked at, DriverSuperseded
        when another driver or repair began meanwhile.
        """
        self._lease.take()
        try:
            if table is not None:
                take_out_of_cuts(self._settings, table.topic, table.topic_id)
            for position in positions:
                made_from_replaced = None
                if position.topic == PIPELINE.stream.name and any(
                    m.error is TopicReplaced for m in position.mismatches
                ):
                    # before the ledger moves: from then on the new topic is read, whose offsets are small again
                    take_out_of_cuts(self._settings, position.topic, position.topic_id)
                    made_from_replaced = self._output()
                moves = [Move(mismatch.partition, mismatch.topic_id, mismatch.at, mismatch.first,
                              f"{mismatch.error.__name__}: {mismatch.text}")
                         for mismatch in position.mismatches]  # fmt: skip
                self._ledger.repair(
                    position.consumer, position.topic, position.topic_id, position.entries, moves, self._by,
                    self._lease, send_pending_again=position.topic == PIPELINE.output.name,
                    made_from_replaced=made_from_replaced,
                )  # fmt: skip
        finally:
            self._lease.release()  # else the stream would wait until this process was silent for long enough
        return sum(len(position.mismatches) for position in positions)

    def _output(self) -> Output:
        topic = PIPELINE.output.name
        topic_id = self._offset_reader.topic_id(topic)
        output = Output(topic, topic_id, self._offset_reader.high_watermarks(topic))
        self._offset_reader.require_ids({topic: topic_id})
        return output

    def _days(self, mismatch: OffsetMismatch, first_at: dict[int, dt.datetime]) -> tuple[Day, Day] | None:
        """Lost records came about when the ledger was last moved or later, and before the first one that is there."""
        if mismatch.advanced_at is None or mismatch.error is LedgerBeyondEnd:
            return None
        until = max(mismatch.advanced_at, first_at.get(mismatch.partition, self._clock.now()))
        return Day.of(mismatch.advanced_at, self._settings.timezone), Day.of(until, self._settings.timezone)


def table_lines(looked: Sequence[tuple[Position, list[Finding]]]) -> Iterator[str]:
    """The findings as an aligned table."""
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


def run(repair: Repair, consumers: Sequence[Query], dry_run: bool, force: bool, show: Callable[[str], None]) -> int:
    """Look, show, and move unless it is a dry run; returns the exit code."""
    looked = [(position, findings) for position, findings in map(repair.look, consumers) if findings]
    table = repair.replaced_table() if "join" in consumers else None
    if not (looked or table):
        show("Nothing to repair: the ledger fits its topics.")
        return OK
    if looked:
        for line in table_lines(looked):
            show(line)
    for position, _ in looked:
        show("\n" + textwrap.fill(REMEDIES[position.consumer], 110, subsequent_indent="  "))
    if table is not None:
        show(f"\n{table.text}. The topic is taken out of their cuts, and published ones are marked dirty.")
    if dry_run:
        show("\nNothing was changed. Without --dry-run each partition above is moved.")
        return FOUND
    if not force:
        repair.refuse_live_driver()
    moved = repair.move([position for position, _ in looked], table)
    show(f"\nPartitions moved: {moved}. Table ledger_repair keeps each. Start the stream.")
    return OK


def reject(
    repair: Repair, rejects: ManualReject, place: Place, dry_run: bool, force: bool, show: Callable[[str], None]
) -> int:
    """Show one record and make it a reject unless it is a dry run; returns the exit code."""
    if not (dry_run or force):
        repair.refuse_live_driver()
    rejects.run(place, dry_run, show)
    return OK


@as_command
def main() -> int:
    """Settings → adapters → one call → exit code."""
    arguments = _arguments()
    consumers = [arguments.consumer] if arguments.consumer else list(TOPICS)
    settings = Settings.from_environment()
    offset_reader = OffsetReader(settings.kafka.bootstrap_servers)
    ledger = OffsetLedger(settings.database)
    repair = Repair(settings, offset_reader, ledger, SystemClock())
    if arguments.reject:
        return reject(repair, ManualReject(settings.database, offset_reader, ledger), Place.parse(arguments.reject),
                      arguments.dry_run, arguments.force, print)  # fmt: skip
    return run(repair, consumers, arguments.dry_run, arguments.force, print)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.repair",
        description=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be moved and lost; change nothing")
    parser.add_argument(
        "--consumer",
        choices=sorted(TOPICS),
        help="only this query's ledger: join reads board, serve reads board-detail (default: both)",
    )
    parser.add_argument(
        "--reject",
        metavar="TOPIC/PARTITION/OFFSET",
        help="make this one record of board or board-detail a reject, whole; the stream then passes over it",
    )
    parser.add_argument("--force", action="store_true", help="also while a driver seems to be alive; it is superseded")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
