"""`pipeline gateway`: the HTTP server, its fallback stores and its rows."""

import datetime as dt
import logging
import math
from pathlib import Path

import click

from include.contracts.clock import SystemClock
from include.contracts.errors import LOOK, OK, TRY_LATER, WrongArguments
from pipeline.group import (
    Group,
    answer,
    at_most_one,
    by_option,
    json_option,
    not_blank,
    reason_option,
    timeout_option,
)

log = logging.getLogger(__name__)


@click.group(cls=Group, lazy={"tokens": "pipeline.tokens:tokens"})
def gateway() -> None:
    """Run the gateway; send the events that Kafka does not have."""


@gateway.command()
def run() -> int:
    """Run the gateway until SIGTERM or SIGINT.

    SIGHUP reloads the tokens file and the certificate. Exit codes: 0 ended by a signal; 70 stopped by supervision, see
    the log; 75 the store is locked by another process or cannot be written, or the port is busy; 78 a setting is
    missing or wrong.
    """
    from include.gateway.serve import run

    return run()


@gateway.command()
@json_option
@timeout_option
def drain(as_json: bool, timeout_s: float) -> int:
    """Have running gateways drain their fallback stores.

    Exit codes: 3 Kafka refuses events; 75 some wait, or a gateway does not answer.
    """
    from include.database.schema_check import checked_settings
    from include.integrity.days.gateways import replay_fallback

    return answer(replay_fallback(checked_settings("batch"), timeout_s), as_json)


def _cluster_id(text: str) -> str:
    if not text.isascii() or len(text.split()) != 1 or text != text.strip():
        raise click.BadParameter("not the id of a Kafka cluster; the gateway's log and /readyz show it")
    return text


@gateway.command()
@click.option("--store", type=click.Path(path_type=Path), metavar="FOLDER",
              help="The store's folder (default: GATEWAY_FALLBACK_DIR).")  # fmt: skip
@click.option("--timeout-s", type=float, default=30.0, metavar="S", help="Seconds to wait for the broker (default 30).")
@click.option("--max-rate", type=click.IntRange(min=1), metavar="N",
              help="Records a second at most (default: GATEWAY_REPLAY_MAX_RATE).")  # fmt: skip
@click.option("--salvage", type=click.Path(path_type=Path), metavar="FILE",
              help="First store the readable records of a damaged file, which is not changed.")  # fmt: skip
@click.option("--list-refused", is_flag=True, help="List the records that Kafka refused, with reasons, and the records "
              "lost to damage; change nothing.")  # fmt: skip
@click.option("--retry-refused", is_flag=True, help="Also send records that Kafka refused before.")
@click.option("--give-up", metavar="WHY", type=not_blank, help="Delete the refused records for good, and acknowledge "
              "the lost ones; send nothing. The reason is stored.")  # fmt: skip
@click.option("--id", "ids", type=int, multiple=True, metavar="N", help="With --give-up: only this refused record.")
@click.option("--move-to-cluster", metavar="ID", type=_cluster_id, help="Assign the events to another Kafka cluster "
              "than that of the first contact; send nothing.")  # fmt: skip
def replay(
    store: Path | None, timeout_s: float, max_rate: int | None, salvage: Path | None, list_refused: bool,
    retry_refused: bool, give_up: str | None, ids: tuple[int, ...], move_to_cluster: str | None,
) -> int:  # fmt: skip
    """Drain the fallback store of a gateway that died.

    It sends the events to Kafka without the gateway. It takes the store's lock, so it fails while a gateway runs on it.
    It logs its progress, and is safe to run again.

    Exit codes: 0 the store is empty; 3 no records wait any more, but Kafka refused some, see --list-refused; 75 some
    wait, or the store or the broker is not available; 78 a setting is wrong, or another cluster answers.
    """
    import asyncio

    from include.gateway import replay as stores
    from include.gateway.fallback.store import require_store
    from include.runtime.settings import Settings
    from include.runtime.tracing import tracer_of

    at_most_one(salvage=salvage, list_refused=list_refused, retry_refused=retry_refused, give_up=give_up,
                move_to_cluster=move_to_cluster)  # fmt: skip
    if ids and give_up is None:
        raise WrongArguments("--id: only with --give-up")
    settings = Settings.from_environment()
    folder = store or settings.gateway.fallback_dir
    require_store(folder)
    if list_refused:
        count = asyncio.run(stores.list_refused(folder))
        log.info("%d records set aside: id, topic, event id, kept at, reason", count)
        return OK
    if give_up is not None:
        log.info("%d records are given up: %s", asyncio.run(stores.give_up(folder, give_up, [*ids] or None)), give_up)
        return OK
    if move_to_cluster is not None:
        former = asyncio.run(stores.move_to_cluster(folder, move_to_cluster))
        log.info("the events belong to Kafka cluster %s, before to %s", move_to_cluster, former or "none")
        return OK
    rate = max_rate or settings.gateway.replay_max_rate
    tracer = tracer_of(settings.tracing, "replay")
    try:
        report = asyncio.run(
            stores.drain_store(folder, settings.kafka.connection, timeout_s, rate, retry_refused, salvage, tracer)
        )
    finally:
        if tracer is not None:
            tracer.close()
    print(f"sent {report.sent}, refused {report.refused}, left {report.left}")
    if report.left:
        return TRY_LATER
    return LOOK if report.refused else OK


def _instant(text: str) -> dt.datetime:
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is not a time; write it as 2026-11-20T09:30:00Z") from exc
    if instant.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no offset; write it as 2026-11-20T09:30:00Z or +09:00")
    if instant > SystemClock().now():
        raise click.BadParameter(f"{text!r} is in the future; give an earlier time")
    return instant


def _age_s(text: str) -> float:
    age_s = float(text)
    if not 0 <= age_s < math.inf:
        raise click.BadParameter(f"{text!r} is not an age; give a number of seconds, 0 or more")
    return age_s


@gateway.command()
@click.option("--since", type=_instant, metavar="TIME",
              help="Compare rows changed from this time on (default: 2 days ago).")  # fmt: skip
@click.option("--all", "all_rows", is_flag=True, help="Compare rows as far back as the topics reach.")
@click.option("--restored", is_flag=True, help="Note that the databases of all pipelines were restored; do nothing "
              "else.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="List the records to produce; change nothing.")
@click.option("--min-age-s", type=_age_s, default=60.0, metavar="S",
              help="Leave rows changed within the last S seconds to the gateways (default 60).")  # fmt: skip
@click.option("--store", "stores", type=click.Path(path_type=Path), multiple=True, metavar="FOLDER",
              help="A fallback store, once for each gateway (default: GATEWAY_FALLBACK_DIR).")  # fmt: skip
@click.option("--date-back", is_flag=True, help="Give rows that are ahead of PostgreSQL's clock the present as "
              "version.")  # fmt: skip
@click.option("--accept-given-twice", is_flag=True, help="Accept ids that two rows have, and end the search for lost "
              "rows.")  # fmt: skip
def reconcile(
    since: dt.datetime | None, all_rows: bool, restored: bool, dry_run: bool, min_age_s: float,
    stores: tuple[Path, ...], date_back: bool, accept_given_twice: bool,
) -> int:  # fmt: skip
    """Produce rows that were saved but never published.

    The rows are members and boards. After a failover of the database, or a restore of a backup, it first writes back
    the rows that were lost. It is safe to run while gateways run, and to run again. See runbook reconcile.

    Exit codes: 0 everything is published, or the dry run is done; 3 Kafka will never take some rows as they are:
    correct them, or versions are ahead; 4 ids were given twice; 75 the timeline of the database changed within the last
    minute, or the database, the broker or a store is not available; 78 a setting is wrong.
    """
    from include.gateway.fallback.store import require_store
    from include.gateway.reconcile import DEFAULT_SINCE, Scope, note_restored, reconcile_sources
    from include.runtime.settings import Settings

    at_most_one(since=since, all=all_rows, restored=restored)
    if restored:
        print(f"noted as restored: {', '.join(note_restored())}")
        return OK
    settings = Settings.from_environment()
    for folder in stores:
        require_store(folder)
    since = None if all_rows else since or SystemClock().now() - DEFAULT_SINCE
    folders = stores or [settings.gateway.fallback_dir]
    done = reconcile_sources(settings, Scope(since, min_age_s, folders, dry_run, date_back, accept_given_twice))
    for one in done:
        print(f"{one.topic}: {one.unpublished} not published, {one.produced} produced, {one.refused} refused, "
              f"{one.ahead} ahead, {one.written_back} written back")  # fmt: skip
    return LOOK if any(one.refused or one.ahead for one in done) else OK


@gateway.command()
@click.option("--store", required=True, metavar="ID", help="The store's id, as `pipeline days watch` names it.")
@reason_option(required=True)
@by_option
@json_option
def give_up_store(store: str, reason: str, made_by: str, as_json: bool) -> int:
    """Accept that the events of a missing store are lost.

    Days can be certified again. Run it once for each pipeline; see runbook gateway-lost.
    """
    from include.database.schema_check import checked_settings
    from include.integrity.days import gateways

    return answer(gateways.give_up_store(checked_settings("batch"), store, reason, made_by), as_json)


@gateway.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def failures(as_json: bool) -> int:
    """Print the gateway's action for each kind of failure."""
    import dataclasses
    import json

    from include.gateway.supervision import TABLE

    if as_json:
        print(json.dumps([dataclasses.asdict(rule) for rule in TABLE.values()], indent=1))
        return OK
    width = max(map(len, TABLE))
    print(f"{'kind':{width}} {'action':8} {'kept':5} {'in Kafka':9} {'circuit':8} {'answer':6} why")
    for rule in TABLE.values():
        kept, in_kafka = "yes" if rule.keep else "no", "perhaps" if rule.ambiguous else "no"
        circuit = "counts" if rule.outage else "-"
        print(f"{rule.kind:{width}} {rule.action:8} {kept:5} {in_kafka:9} {circuit:8} {rule.status:<6} {rule.why}")
    return OK
