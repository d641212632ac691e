"""Produces rows that were saved but never published: `pipeline gateway reconcile`.

After a failover of the database, or a restore of a backup, it first writes back the rows that were lost.

The gateway saves a member or board first and produces its record second. If the record could be stored nowhere, or the
gateway died in between, the row exists and the topic lacks it. This command compares the newest version of each row
with the topic and the fallback stores, and produces the versions that none of them has, deletions as tombstones.

Rows that the database lost because a standby was promoted that had not received them are in the topic, or in a
fallback store, if they were accepted. While `database_timeline` has a timeline without `reconciled_at`, they are
written back from there, as far back as the timeline needs it, whatever `--since` says. Ids of which there is neither a
row nor a record are logged, and so are rows of which there is a tombstone that the API did not make: perhaps of a
person who was forgotten in the meantime. Persons in `forgotten_key` are not written back, nor are their boards. If an
id was given to two rows, the timeline stays without `reconciled_at` until a run with `--accept-given-twice`.

`--restored` is for after a restore: it notes in the database of each listed pipeline that rows may be lost, moves its
sequences ahead, and does nothing else. PostgreSQL shows a promotion by itself, but not a dump that is restored in its
own server, a copy of the disk, or a base backup that was started without `recovery.signal`.

It is safe to run while gateways run, and to run again. Rows changed within the last minute are left to the gateways.
The event id is derived from topic, id and version, as in the gateway, so a record that a gateway sent without receiving
its acknowledgement is a copy. A version older than the one that a topic has by then loses every version comparison.
A version that is ahead of PostgreSQL's clock by more than the contract's tolerance was saved while that was ahead. It
is logged and not produced, because readers reject it; `--date-back` gives such rows the present as their version, and a
run a minute later produces them.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from include.contracts.clock import Clock, SystemClock, rfc3339
from include.contracts.errors import BrokerUnavailable, PipelineError, Retryable
from include.contracts.pipelines import BOARD, MEMBER
from include.contracts.topics import Topic
from include.database.named import query
from include.database.schema_check import require_schema
from include.database.sessions import LONG, connect, open_connection
from include.gateway.home_cluster import require_own_cluster
from include.gateway.intake import row_record
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Producer, Record
from include.gateway.supervision import rule_for
from include.gateway.unpublished_rows import (
    Timeline,
    UnpublishedRow,
    UnpublishedRows,
    WrittenBack,
    iter_store,
    iter_topic,
)
from include.runtime.settings import Settings, pipeline_names

log = logging.getLogger("include.gateway.reconcile")


DEFAULT_SINCE = dt.timedelta(days=2)
DEFAULT_MIN_AGE_S = 60.0  # longer than every timeout of a gateway: records of younger rows may still be in flight
_SLACK = dt.timedelta(minutes=10)  # allowed skew between the clocks of database, gateway and broker
_DELIVERY_S = 30.0  # longer than the gateway's, since no client waits
_REACH_S = 10.0
_CLUSTER_S = 5.0  # shorter than the timeouts of the reads that follow, so that an outage is reported sooner
_PROGRESS_S = 5.0
_SHOWN = 20  # ids logged at most


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows to compare: changed from `since` on (None: as far back as the topic reaches), older than `min_age_s`.

    `stores` are folders of fallback stores: versions that wait there count as published.
    `dates_back`: versions that are ahead of PostgreSQL's clock are replaced by the present.
    `accepts_given_twice`: a person has dealt with the ids that were given to two rows. `require_all_read` is called
    before a timeline counts as reconciled, and raises if a store is not read that may have lost rows.
    """

    since: dt.datetime | None
    min_age_s: float = DEFAULT_MIN_AGE_S
    stores: Sequence[Path] = ()
    dry_run: bool = False
    dates_back: bool = False
    accepts_given_twice: bool = False
    require_all_read: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Counts of rows of one topic. `refused` are those that Kafka will never accept as they are.

    `ahead` are those whose version is ahead of PostgreSQL's clock, so that readers would reject it; all are logged.

    After a change of the timeline: `written_back` are rows and versions that the database had lost. `without_record`
    are ids of which nothing is known, `with_tombstone` rows that someone else than the API deleted, and `given_twice`
    rows whose id another row had before; all are logged.
    """

    topic: str
    unpublished: int
    produced: int
    refused: int
    ahead: int = 0
    written_back: int = 0
    without_record: int = 0
    with_tombstone: int = 0
    given_twice: int = 0


class TimelineTooYoung(Retryable):
    """The database changed its timeline so recently that records of lost rows may be in flight; run it again."""


class IdsGivenTwice(PipelineError):
    """Rows have ids that lost rows had before; the log names them. See docs/runbooks/database.md."""


def note_restored(environment: Mapping[str, str] | None = None) -> list[str]:
    """Note in the database of each listed pipeline that it was restored; returns the names of the databases.

    Its rows count as lost from the beginning until they are reconciled, and every sequence is moved ahead: ids of lost
    rows are not given again. Raises DatabaseUnavailable; the databases before are noted then.
    """
    noted = []
    for pipeline in pipeline_names(environment):
        database = Settings.from_environment(environment, pipeline).database
        with connect(database, "gateway", "reconcile") as connection, connection.cursor() as cursor:
            cursor.execute(query("note_restored", cursor))
        noted.append(database.name)
    return noted


def reconcile_sources(settings: Settings, scope: Scope) -> list[Reconciled]:
    """Find the rows that are not published, and produce them unless it is a dry run.

    Blocks, for minutes if the topics are large; memory is bounded. After a run that is not dry, every row of the scope
    that is not counted as refused was acknowledged by Kafka, was published before, or waits in one of the stores; and
    every row that is published is in the database. Raises TimelineTooYoung if that cannot be said yet of a timeline of
    the database; IdsGivenTwice, after all else is done; DatabaseUnavailable, BrokerUnavailable, StoreUnavailable, and
    ContractMismatch if a topic does not exist, or the database is another pipeline's.
    """
    clock = SystemClock()
    require_own_cluster(settings.kafka.connection, scope.stores, _CLUSTER_S)
    require_schema(settings.database, "gateway")
    with closing(open_connection(settings.database, "gateway", "reconcile", LONG)) as connection:
        rows = UnpublishedRows(connection)
        # before the topics are read: no record of a row up to this time is in flight any more
        until = rows.committed_until(scope.min_age_s)
        if not scope.dry_run:
            rows.correct_timelines()
        timelines = rows.unreconciled()
        scope = replace(scope, since=_since(scope.since, timelines))
        done = [_reconcile(settings, scope, rows, topic, until, timelines, clock) for topic in (MEMBER, BOARD)]
        if timelines and not scope.dry_run:
            member, board = (one.given_twice for one in done)
            if member + board and not scope.accepts_given_twice:
                raise IdsGivenTwice(member=member, board=board)
            if scope.require_all_read is not None:
                scope.require_all_read()
            rows.save_reconciled(each for each in timelines if each.first_seen_at < until)
            young = [each.name for each in timelines if each.first_seen_at >= until]
            if young:
                raise TimelineTooYoung(timelines=", ".join(young), younger_than_s=scope.min_age_s)
        return done


def _since(since: dt.datetime | None, timelines: Sequence[Timeline]) -> dt.datetime | None:
    """Return the time to compare from, so that all that is lost on these timelines is in it."""
    for each in timelines:
        if since is None or each.replayed_until is None:
            return None
        since = min(since, each.replayed_until)
    return since


def _reconcile(
    settings: Settings, scope: Scope, rows: UnpublishedRows, topic: Topic, until: dt.datetime,
    timelines: Sequence[Timeline], clock: Clock,
) -> Reconciled:  # fmt: skip
    since = _first_change(scope.since, topic, settings.kafka.retention_days, clock)
    contents = bool(timelines)
    rows.begin()
    # stores before topics: a record replayed meanwhile is found in both, never in neither
    waiting = rows.add(chain.from_iterable(iter_store(folder, topic, contents) for folder in scope.stores))
    read_since = scope.since if timelines else since  # of lost rows, Kafka may have more than it promises to keep
    from_at = None if read_since is None else read_since - _SLACK
    published = rows.add(iter_topic(settings.kafka.connection, topic, from_at, contents))
    where = "the beginning" if read_since is None else rfc3339(read_since)
    log.info("%s since %s: %d versions published, %d in fallback stores", topic.name, where, published, waiting)
    found = rows.write_back(topic, scope.dry_run) if timelines else WrittenBack([], [], [], [])
    _show_written_back(topic, found, scope.dry_run)
    if timelines and since is not None and read_since != since:
        log.warning("%s: records from before %s may have expired in Kafka, and rows that were lost before cannot be "
                    "written back then", topic.name, rfc3339(since))  # fmt: skip
    ahead = rows.date_back(topic, dry_run=scope.dry_run or not scope.dates_back)
    what = "ahead of PostgreSQL's clock" + (", and dated back" if scope.dates_back else ": see docs/runbooks/clock.md")
    _log_ids(topic, ahead, logging.WARNING if scope.dates_back else logging.ERROR, f"with a version that is {what}")
    compared = _compare(settings, scope, rows, topic, since, until)
    return replace(
        compared,
        ahead=0 if scope.dates_back else len(ahead),
        written_back=len(found.rows),
        without_record=len(found.without_record),
        with_tombstone=len(found.with_tombstone),
        given_twice=len(found.given_twice),
    )


def _show_written_back(topic: Topic, found: WrittenBack, dry_run: bool) -> None:
    for ids, level, what in (
        (found.rows, logging.INFO, "lost by the database" if dry_run else "lost by the database and written back"),
        (found.without_record, logging.WARNING, "given out and without a row or a record, so not answered 2xx"),
        (found.with_tombstone, logging.WARNING, "saved, with a tombstone that the API did not make: a person who was "
         "forgotten must be forgotten again, see docs/runbooks/forget.md"),
        (found.given_twice, logging.ERROR, "of a row and of the record of a lost one, which is not written back"),
    ):  # fmt: skip
        _log_ids(topic, ids, level, what)


def _log_ids(topic: Topic, ids: Sequence[int], level: int, what: str) -> None:
    if ids:
        shown = ", ".join(map(str, ids[:_SHOWN])) + (", …" if len(ids) > _SHOWN else "")
        log.log(level, "%s: %d ids %s: %s", topic.name, len(ids), what, shown)


def _compare(
    settings: Settings, scope: Scope, rows: UnpublishedRows, topic: Topic, since: dt.datetime | None,
    until: dt.datetime,
) -> Reconciled:  # fmt: skip
    if scope.dry_run:
        unpublished = 0
        with closing(rows.iter_rows(topic, since, until)) as batches:
            for batch in batches:
                _show(topic, batch, unpublished)
                unpublished += len(batch)
        return Reconciled(topic.name, unpublished, 0, 0)
    return asyncio.run(_produce(settings, rows, topic, since, until))


def _first_change(since: dt.datetime | None, topic: Topic, retention_days: int, clock: Clock) -> dt.datetime | None:
    """Return the time to compare from. Rows are excluded if retention may have deleted their records already."""
    if topic.retention_days is None:
        return since
    kept_from = clock.now() - dt.timedelta(days=retention_days) + 2 * _SLACK
    return kept_from if since is None else max(since, kept_from)


async def _produce(
    settings: Settings, rows: UnpublishedRows, topic: Topic, since: dt.datetime | None, until: dt.datetime
) -> Reconciled:
    unpublished = produced = 0
    producer: KafkaProducer | None = None
    loop = asyncio.get_running_loop()
    logged_s = loop.time()
    try:
        with closing(rows.iter_rows(topic, since, until)) as batches:
            for batch in batches:
                if producer is None:  # most runs need none
                    producer = KafkaProducer(settings.kafka.connection, _DELIVERY_S)
                    producer.start(lambda failure: None)
                    if await producer.cluster_id(_REACH_S) is None:
                        raise BrokerUnavailable(bootstrap_servers=settings.kafka.bootstrap_servers)
                _show(topic, batch, unpublished)
                unpublished += len(batch)
                produced += await send(producer, [row_record(topic, row.saved, row.key) for row in batch])
                if loop.time() > logged_s + _PROGRESS_S:
                    logged_s = loop.time()
                    log.info("%s: %d rows produced so far", topic.name, produced)
    finally:
        if producer is not None:
            await producer.close(1.0)
    return Reconciled(topic.name, unpublished, produced, refused=unpublished - produced)


async def send(producer: Producer, records: Sequence[Record]) -> int:
    """Produce the records and return how many Kafka acknowledged. Raises BrokerUnavailable in an outage."""
    acknowledged = 0
    outage = None
    for record, delivery in [(record, producer.send(record)) for record in records]:
        failure = await delivery
        if failure is None:
            acknowledged += 1
            continue
        rule = rule_for(failure)
        log.error("event %s of %s not produced: %s: %s", record.event_id, record.topic, failure.kind, rule.why)
        if rule.keep:
            outage = failure
    if outage is not None:  # the next run finds the missing rows again, under the same event ids
        raise BrokerUnavailable(reason=outage.kind, acknowledged=acknowledged, of=len(records))
    return acknowledged


def _show(topic: Topic, batch: Sequence[UnpublishedRow], shown: int) -> None:
    for row in batch[: max(0, _SHOWN - shown)]:
        what = "deleted" if row.saved.value is None else "saved"
        log.info("not published: %s %d, %s at %s", topic.name, row.saved.id, what, rfc3339(row.saved.modified_at))
    if shown < _SHOWN < shown + len(batch):
        log.info("and more; ids are shown up to %d", _SHOWN)
