"""`pipeline stream`: the speed layer, and its repair."""

import click

from include.contracts.errors import LOOK, OK
from pipeline.group import Group, answer, json_option, timeout_option

_FORCE = "Also if a driver seems to be alive; it is superseded."


@click.group(cls=Group, lazy={"run": "spark_jobs.stream:main"})
def stream() -> None:
    """Run the speed layer; repair its offsets and its rows."""


@stream.command()
@timeout_option
@json_option
def catch_up(timeout_s: float, as_json: bool) -> int:
    """Wait until the stream has processed the records in the topics."""
    from include.database.schema_check import checked_settings
    from include.integrity.days.catch_up import wait_until_caught_up

    return answer(wait_until_caught_up(checked_settings("batch"), timeout_s), as_json)


@stream.command()
@click.option("--dry-run", is_flag=True, help="Show the moves and the losses; change nothing.")
@click.option("--consumer", type=click.Choice(["join", "serve"]), help="Only this query's ledger: join reads the "
              "stream's topic, serve the output topic (default: both).")  # fmt: skip
@click.option("--reject", metavar="TOPIC/PARTITION/OFFSET", help="Make this record of the stream's or the output topic "
              "a reject; the stream then skips it.")  # fmt: skip
@click.option("--force", is_flag=True, help=_FORCE)
def repair(dry_run: bool, consumer: str | None, reject: str | None, force: bool) -> int:
    """Move the offset ledger where it no longer fits its topic.

    The stream refuses to start if a topic was deleted and created again (TopicReplaced), if retention or DeleteRecords
    removed records that the stream had not read (RangeExpired), or if the ledger is beyond the topic's end
    (LedgerBeyondEnd). This command shows each such partition, the offset to continue from and the number of lost
    records. Without --dry-run it moves the ledger to that offset: the first record that the topic still holds. Reading
    a record twice does no harm to the table; the output topic gets a copy, also with exactly-once delivery.

    The stream also refuses to start if generations were built from another topic of the table (TopicReplaced): their
    cuts have no meaning for the present topic. This command removes the topic from the cuts and marks the published
    days dirty.

    With --reject it makes one record a reject, for any reason: table reject keeps the whole record, and the stream
    skips it from the next start on. A rebuild still reads the record, and decides by itself.

    All moves of a query are one transaction, and table ledger_repair keeps each partition's move. The command refuses
    while a driver is alive. With --force it supersedes that driver, which then writes no more and ends.

    Exit codes: 0 nothing to repair, or repaired; 2 wrong usage; 3 a dry run found something to repair; 75 a driver is
    alive, the ledger moved meanwhile, or Kafka or PostgreSQL is not available; 78 a setting is wrong, or a topic does
    not exist.
    """
    from typing import get_args

    from include.contracts.clock import SystemClock
    from include.database.offset_ledger import OffsetLedger
    from include.database.schema_check import checked_settings
    from include.kafka.offsets import OffsetReader
    from spark_jobs import repair as job
    from spark_jobs.speed.health.state import Query

    settings = checked_settings("batch")
    offset_reader = OffsetReader(settings.kafka.connection)
    ledger = OffsetLedger(settings.database)
    found = job.Repair(settings, offset_reader, ledger, SystemClock())
    if reject:
        place = job.Place.parse(reject, settings.pipeline)
        return job.reject(found, job.ManualReject(settings, offset_reader, ledger), place, dry_run, force)
    return job.run(found, [each for each in get_args(Query) if consumer in (None, each)], dry_run, force)


@stream.command()
@click.option("--execute", is_flag=True, help="Remove the rows; without this option only print them.")
@click.option("--force", is_flag=True, help=_FORCE)
def recheck(execute: bool, force: bool) -> int:
    """Remove rows of records that the contract now rejects.

    The contract is narrower than when these records were accepted: since then a version may not be later than the time
    of its record, for example. Readers reject such a record, but rows that were made from it stay: in front of readers,
    and above every newer record that has an earlier version.

    It reads the topics of the stream and of the table from their first record on, and from the archive the records that
    they no longer have. It prints each row, its record and the reason, counts the archived versions of such records,
    and changes nothing. With --execute it also removes the rows of the speed layer, sends the newest valid record of
    each of these keys again, removes the versions from the archive, keeps the records in table reject, and marks the
    published days dirty. The next night rebuilds those.

    Stop the stream before --execute, after it has processed all records, and start it afterwards. Run the command again
    after a repair of serve, which reads the output topic again. docs/runbooks/clock.md has the steps.

    Exit codes: 0 nothing found, or removed; 2 wrong arguments; 3 rows or versions were found and not removed; 75 a
    driver is alive or behind, an archive run is in progress, or a server is down: run it again; 78 a setting is wrong.
    """
    from include.database.schema_check import checked_settings
    from spark_jobs.recheck import Recheck, lines

    found = Recheck(checked_settings("batch"))
    if execute and not force:
        found.refuse_live_driver()
    rejected, made = found.look(keep=execute)
    for line in lines(rejected, made):
        print(line)
    for one in rejected:
        print(f"{one.topic.name}: {len(one.reasons):,} records are rejected")
    print(f"{len({each.row for each in made}):,} rows were made from some of them")
    if not execute:
        archived = found.count_archived(rejected)
        print(f"{archived:,} versions in the archive are of some of them")
        return LOOK if made or archived else OK
    for place, number in found.remove(rejected, made).items():
        print(f"  {place:<26}{number:>10,}")
    print("Start the stream. The night rebuilds the days that are marked dirty.")
    return OK
