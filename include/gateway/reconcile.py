"""Produces rows that were saved but never published: `python -m include.gateway.reconcile [--dry-run]`.

A member or board is saved first and produced then. When its record could be kept nowhere, or the gateway died between
the two, the row is there and the topics do not know it. This compares the newest version of each row with the topic and
with the fallback stores, and produces what neither has, deletions as tombstones.

It is safe while gateways run, and safe to run again: rows changed within the last minute are left to them; a record's
identity is made of topic, id and version, as by the gateway, so that a record that a gateway sent without hearing of
it is a copy; and a version that is older than what a topic has by then loses to it wherever versions are compared.
Exit codes: 0 everything is published, or was shown; 75 some rows are not, or the database, the broker or a store is not
available; 78 a setting is wrong.
"""

import argparse
import asyncio
import datetime as dt
import logging
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from include.adapters.cluster_file import require_own_cluster
from include.adapters.kafka_producer import KafkaProducer
from include.adapters.postgres import LONG, open_connection
from include.adapters.published_versions import iter_store, iter_topic
from include.adapters.unpublished_rows import UnpublishedRow, UnpublishedRows
from include.clock import Clock, SystemClock, rfc3339
from include.command import as_command
from include.contracts.topics import RAW_TOPICS, Topic
from include.errors import OK, TRY_LATER, BrokerUnavailable, ConfigurationError
from include.gateway.intake import accepted_at, row_record
from include.gateway.ports import Producer, Record
from include.gateway.supervision import rule_for
from include.settings import Settings

log = logging.getLogger("include.gateway.reconcile")


DEFAULT_SINCE = dt.timedelta(days=2)
DEFAULT_MIN_AGE_S = 60.0  # beyond every deadline of a gateway: what is younger may still be on its way
_SLACK = dt.timedelta(minutes=10)  # between the clocks of database, gateway and broker
_DELIVERY_S = 30.0  # nobody waits for an answer here
_REACH_S = 10.0
_LOOK_S = 5.0  # sooner than the look-ups that follow would tell that no broker answers
_PROGRESS_S = 5.0
_SHOWN = 20  # ids in the log; the count tells the rest


@dataclass(frozen=True, slots=True)
class Scope:
    """What to look at: rows changed from `since` (None: as far back as the topic reaches) and older than `min_age_s`.

    `stores` are folders of fallback stores: what waits there is on its way.
    """

    since: dt.datetime | None
    min_age_s: float = DEFAULT_MIN_AGE_S
    stores: Sequence[Path] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What was done for one topic. `refused`: Kafka will never take these as they are."""

    topic: str
    unpublished: int
    produced: int
    refused: int


def reconcile_sources(settings: Settings, scope: Scope, clock: Clock | None = None) -> list[Reconciled]:
    """Find the rows that are not published, and produce them unless it is a dry run.

    Blocks, for minutes when the topics are large; its memory is bounded. A success tells that every row of the scope
    that is not counted as refused was acknowledged by Kafka, was published before, or waits in one of the stores.
    Raises DatabaseUnavailable, BrokerUnavailable, StoreUnavailable, ContractMismatch for a topic that does not exist.
    """
    clock = clock or SystemClock()
    require_own_cluster(settings.kafka.bootstrap_servers, scope.stores, _LOOK_S)
    with closing(open_connection(settings.database, "gateway", "reconcile", LONG)) as connection:
        rows = UnpublishedRows(connection)
        until = rows.settled_until(scope.min_age_s)  # before anything is read, so that what it covers is settled
        return [_reconcile(settings, scope, rows, topic, until, clock) for topic in RAW_TOPICS.values()]


def _reconcile(
    settings: Settings, scope: Scope, rows: UnpublishedRows, topic: Topic, until: dt.datetime, clock: Clock
) -> Reconciled:
    since = _first_change(scope.since, topic, settings.kafka.board_retention_days, clock)
    rows.begin()
    # the stores first: a record that is replayed meanwhile is met in both, never in neither
    waiting = rows.add(chain.from_iterable(iter_store(folder, topic) for folder in scope.stores))
    from_at = None if since is None else since - _SLACK
    published = rows.add(iter_topic(settings.kafka.bootstrap_servers, topic, from_at))
    where = "the beginning" if since is None else rfc3339(since)
    log.info("%s since %s: %d versions published, %d in fallback stores", topic.name, where, published, waiting)
    if scope.dry_run:
        unpublished = 0
        with closing(rows.iter_rows(topic, since, until)) as batches:
            for batch in batches:
                _show(topic, batch, unpublished)
                unpublished += len(batch)
        return Reconciled(topic.name, unpublished, 0, 0)
    return asyncio.run(_produce(settings, rows, topic, since, until, clock))


def _first_change(since: dt.datetime | None, topic: Topic, retention_days: int, clock: Clock) -> dt.datetime | None:
    """Where to begin: no row is asked for whose record the topic may have dropped already."""
    if topic.retention_days is None:
        return since
    kept_from = clock.now() - dt.timedelta(days=retention_days) + 2 * _SLACK
    return kept_from if since is None else max(since, kept_from)


async def _produce(
    settings: Settings, rows: UnpublishedRows, topic: Topic, since: dt.datetime | None, until: dt.datetime, clock: Clock
) -> Reconciled:
    unpublished = produced = 0
    producer: KafkaProducer | None = None
    loop = asyncio.get_running_loop()
    told_s = loop.time()
    try:
        with closing(rows.iter_rows(topic, since, until)) as batches:
            for batch in batches:
                if producer is None:  # most runs need none
                    producer = KafkaProducer(settings.kafka.bootstrap_servers, _DELIVERY_S)
                    producer.start(lambda failure: None)
                    if await producer.cluster_id(_REACH_S) is None:
                        raise BrokerUnavailable(bootstrap_servers=settings.kafka.bootstrap_servers)
                _show(topic, batch, unpublished)
                unpublished += len(batch)
                produced += await send(producer, [record_of(topic, row, clock) for row in batch])
                if loop.time() > told_s + _PROGRESS_S:
                    told_s = loop.time()
                    log.info("%s: %d rows produced so far", topic.name, produced)
    finally:
        if producer is not None:
            await producer.close(1.0)
    return Reconciled(topic.name, unpublished, produced, refused=unpublished - produced)


async def send(producer: Producer, records: Sequence[Record]) -> int:
    """Produce the records; returns how many Kafka acknowledged. Raises BrokerUnavailable when it is out."""
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
    if outage is not None:  # the next run finds what is missing; the identities stay the same
        raise BrokerUnavailable(reason=outage.kind, acknowledged=acknowledged, of=len(records))
    return acknowledged


def record_of(topic: Topic, row: UnpublishedRow, clock: Clock) -> Record:
    """The record of a row, accepted now."""
    return row_record(topic, row.saved, accepted_at(clock.now()), row.key)


def _show(topic: Topic, batch: Sequence[UnpublishedRow], shown: int) -> None:
    for row in batch[: max(0, _SHOWN - shown)]:
        what = "deleted" if row.saved.value is None else "saved"
        log.info("not published: %s %d, %s at %s", topic.name, row.saved.id, what, rfc3339(row.saved.modified_at))
    if shown < _SHOWN < shown + len(batch):
        log.info("and more; ids are shown up to %d", _SHOWN)


def _instant(text: str) -> dt.datetime:
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-11-20T09:30:00Z") from exc
    if instant.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no offset; write it as 2026-11-20T09:30:00Z or +09:00")
    return instant


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Produce members and boards that were saved but never published.")
    span = parser.add_mutually_exclusive_group()
    span.add_argument("--since", type=_instant, help="look at rows changed from this time (default: 2 days ago)")
    span.add_argument("--all", action="store_true", help="look as far back as the topics reach")
    parser.add_argument("--dry-run", action="store_true", help="show what would be produced; change nothing")
    parser.add_argument("--min-age-s", type=float, default=DEFAULT_MIN_AGE_S, metavar="S",
                        help="leave rows changed within the last S seconds to the gateways (default 60)")  # fmt: skip
    parser.add_argument("--store", type=Path, action="append", metavar="FOLDER",
                        help="a fallback store, once for each gateway (default: GATEWAY_FALLBACK_DIR)")  # fmt: skip
    return parser.parse_args()


@as_command
def main() -> int:
    """Reconcile, and say what was done."""
    arguments = _arguments()
    settings = Settings.from_environment()
    for folder in arguments.store or []:
        if not folder.is_dir():
            raise ConfigurationError(f"no fallback store in {folder}; name its folder with --store")
    since = None if arguments.all else arguments.since or SystemClock().now() - DEFAULT_SINCE
    stores = arguments.store or [settings.gateway.fallback_dir]
    scope = Scope(since, arguments.min_age_s, stores, arguments.dry_run)
    done = reconcile_sources(settings, scope)
    for one in done:
        print(f"{one.topic}: {one.unpublished} not published, {one.produced} produced, {one.refused} refused")
    return TRY_LATER if any(one.refused for one in done) else OK


if __name__ == "__main__":
    sys.exit(main())
