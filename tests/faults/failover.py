"""The proof of a database that fails over: `python -m tests.faults.failover --rounds 3 --seed 7`.

A primary and a streaming standby, Kafka, the gateway and the stream run as processes. Clients make, change and delete
members and boards; meanwhile the primary is killed with all its processes, and the standby is promoted. Gateway and
stream reach it by themselves: they know both hosts, and want the one that takes writes.

A round has one of three modes. In the first nothing happens. With synchronous replication no answered row may be
missing afterwards. Without it the standby is cut off some seconds before: rows, progress of the stream and a
publication are lost. Then the certificate must say so, reconcile must write back every answered row, the night must
find the publication, and the view must show each board once. In all modes no id is given twice, and a driver goes on
only on the timeline on which it took its lease. With `--delivery exactly_once` no record of the stream may be in the
output twice, although its progress is lost. Exit codes are those of `tests/faults/frame.py`.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import SITE_NAME
from include.contracts.validation import parse_timestamp
from include.gateway.reconcile import Reconciled, Scope, reconcile_sources
from include.integrity.days.catch_up import wait_until_caught_up
from include.integrity.days.certificate import Certificate
from include.integrity.days.due_days import days_to_rebuild
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE, Settings
from tests.faults import frame
from tests.faults.closed_load import CLIENTS, ClosedLoad
from tests.faults.connection import Answer, Connection, Unanswered
from tests.faults.stream_driver import Driver
from tests.faults.stream_topics import Log, TopicReader
from tests.servers import PostgresTestServer, kafka_server, postgres_server, wait_until
from tests.support.certifying import certify_alone
from tests.support.gateway_process import GatewayProcess
from tests.support.pipeline import environment, rows, with_topics
from tests.support.publication import publish
from tests.support.serving import DAY, build
from tests.support.serving import row as detail
from tests.support.standby import as_superuser, disconnect, promote, standby_of, wait_until_replayed

_DATABASE = "failover"
_PAUSE_S = 0.01
_BEFORE_S = (4.0, 7.0)
_CUT_OFF_S = (1.0, 3.0)
_DOWN_S = (0.5, 3.0)
_AFTER_S = 4.0
_RECOVERS_S = 180.0
_ENDS_S = 60.0
_TOKEN = {"Authorization": "Bearer data-token", "Content-Type": "application/json"}
_SAVED = """
SELECT 'members', id, modified_at, deleted_at IS NOT NULL, nickname FROM site.member
 UNION ALL
SELECT 'boards', id, modified_at, deleted_at IS NOT NULL, document ->> 'title' FROM site.board_document
"""
_SHOWN = "SELECT board_id, title FROM board_detail"
_SYNCHRONOUS = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"


class Mode(StrEnum):
    """The faults; a round has one."""

    NONE = "nothing"
    SYNCHRONOUS = "failover with synchronous replication"
    ASYNCHRONOUS = "failover without synchronous replication"


class Version(msgspec.Struct, frozen=True):
    """A version of a row that a client was answered 2xx for. `text` is its nickname or title; None: it was deleted."""

    kind: str
    row_id: int
    at: str
    text: str | None


class SiteLoad(ClosedLoad):
    """Clients that each make, change and delete members and boards of their own."""

    def __init__(self, url: str, seed: str) -> None:
        self.answered: list[Version] = []
        self.made: Counter[tuple[str, int]] = Counter()
        self.statuses: Counter[int] = Counter()
        super().__init__(url, seed, "site-load")

    async def _client(self, chance: random.Random, connection: Connection) -> None:
        mine: dict[str, list[int]] = {"members": [], "boards": []}
        while not self._is_stopping.is_set():
            kind = chance.choice(("members", "boards", "boards")) if mine["members"] else "members"
            method = chance.choice(("POST", "POST", "POST", "PUT", "PUT", "DELETE")) if mine[kind] else "POST"
            if kind == "members" and method == "DELETE":
                method = "PUT"  # boards keep their author
            row_id = chance.choice(mine[kind]) if method != "POST" else None
            text = f"t{chance.random()}"
            if kind == "members":
                fields: dict[str, object] = {"nickname": text, "city": None, "phone": None, "email": None}
            else:
                fields = {"memberId": chance.choice(mine["members"]), "title": text, "body": "본문"}
            body = b"" if method == "DELETE" else msgspec.json.encode(fields)
            path = f"/{kind}" if row_id is None else f"/{kind}/{row_id}"
            try:
                answer = await connection.call(method, path, body, _TOKEN)
            except Unanswered:
                continue
            finally:
                if method == "DELETE" and row_id is not None:
                    mine[kind].remove(row_id)  # perhaps deleted
            self._learn(answer, kind, method, None if method == "DELETE" else text, mine)
            await asyncio.sleep(_PAUSE_S)
        connection.close()

    def _learn(self, answer: Answer, kind: str, method: str, text: str | None, mine: dict[str, list[int]]) -> None:
        self.statuses[answer.status] += 1
        if answer.status in (200, 201):
            content = msgspec.json.decode(answer.body)
            self.answered.append(Version(kind, content["id"], content["modifiedAt"], text))
            if method == "POST":
                self.made[kind, content["id"]] += 1
                mine[kind].append(content["id"])


@dataclass(frozen=True)
class Round:
    """A round that was run: figures, and the promises that it broke, each with the places."""

    mode: Mode
    figures: dict[str, object]
    broken: dict[str, list[object]] = field(default_factory=dict)


@dataclass(frozen=True)
class Parts:
    """The servers and processes of a round. `settings` lead to the server that takes writes, `old` to the primary."""

    old: Settings
    settings: Settings
    primary: PostgresTestServer
    standby: PostgresTestServer
    gateway: GatewayProcess
    driver: Driver


@contextmanager
def parts_in(folder: Path, synchronous_commit: str | None, delivery: str) -> Iterator[Parts]:
    """Yield all of it, running and healthy. `synchronous_commit`: None without synchronous replication."""
    for name in ("kafka", "primary", "gateway"):
        (folder / name).mkdir(parents=True)
    with kafka_server(folder / "kafka") as kafka, postgres_server(folder / "primary") as primary:
        old = with_topics(kafka, primary, _DATABASE, folder)
        standby = standby_of(primary, folder / "standby")
        variables = environment(kafka, primary, _DATABASE, folder) | {
            "DATABASE_HOST": f"{primary.host},{standby.host}",
            "DATABASE_TARGET_SESSION_ATTRS": "read-write",
            "STREAM_DELIVERY": delivery,
        }  # fmt: skip
        gateway = GatewayProcess.over(folder / "gateway", kafka.bootstrap_servers, **variables)
        driver = Driver({**variables, "STREAM_DRIVER_MEMORY": "1g"}, folder / "driver")
        try:
            standby.start()
            if synchronous_commit is not None:
                as_superuser(
                    primary, "ALTER SYSTEM SET synchronous_standby_names = '*';\n"
                    f"ALTER SYSTEM SET synchronous_commit = '{synchronous_commit}';\nSELECT pg_reload_conf()",
                )  # fmt: skip
                wait_until(lambda: as_superuser(primary, _SYNCHRONOUS) != [], _ENDS_S, "the standby is synchronous")
            gateway.start()
            driver.start()
            yield Parts(old, Settings.from_environment(variables), primary, standby, gateway, driver)
        finally:
            driver.close()
            if gateway.process is not None:
                gateway.kill()
            standby.stop()


def run(folder: Path, mode: Mode, seed: str, delivery: str = AT_LEAST_ONCE) -> Round:
    """Run one round. Raises AssertionError if gateway and stream do not become healthy again."""
    chance = random.Random(seed)
    level = chance.choice(("on", "remote_apply")) if mode is Mode.SYNCHRONOUS else None
    yesterday = Day.of(SystemClock().now(), DAY.zone).before(1)
    began = time.monotonic()
    with parts_in(folder, level, delivery) as parts:
        build(parts.old, [detail(10**15, 1)], cut=9, run_id="before")
        publish(parts.old, DAY, "before")
        before = certify_alone(parts.old, DAY)
        if mode is not Mode.SYNCHRONOUS:
            wait_until_replayed(parts.primary, parts.standby)
        load = SiteLoad(parts.gateway.url, seed)
        try:
            time.sleep(chance.uniform(*_BEFORE_S))
            if mode is Mode.ASYNCHRONOUS:
                disconnect(parts.standby)
                time.sleep(chance.uniform(*_CUT_OFF_S))
            build(parts.old, [], cut=9, run_id="last", day=yesterday)
            publish(parts.old, yesterday, "last")
            if mode is not Mode.NONE:
                parts.primary.kill()
                time.sleep(chance.uniform(*_DOWN_S))
                promote(parts.standby)
                answered = len(load.answered)
                wait_until(lambda: len(load.answered) > answered + CLIENTS, _RECOVERS_S, "clients are answered again")
            time.sleep(_AFTER_S)
        finally:
            load.stop()
        return _judged(parts, mode, load, before, yesterday, began)


def _judged(
    parts: Parts, mode: Mode, load: SiteLoad, before: Certificate, yesterday: Day, began: float
) -> Round:  # fmt: skip
    settings = parts.settings
    with parts.gateway.client() as client:
        wait_until(lambda: client.fallback()["backlog"] == 0, _RECOVERS_S, "the gateway's store is drained")
    if mode is not Mode.NONE:
        wait_until(lambda: "TimelineChanged" in parts.driver.log.read_text(errors="replace"), _RECOVERS_S,
                   f"the driver stops on the new timeline, see {parts.driver.log}")  # fmt: skip
    wait_until(parts.driver.is_healthy, _RECOVERS_S, "the driver is healthy again")
    assert wait_until_caught_up(settings, _RECOVERS_S).is_caught_up, f"the stream lags, see {parts.driver.log}"
    missing = _missing(settings, load.answered)
    certificate = certify_alone(settings, DAY)
    nights = days_to_rebuild(settings, yesterday, lambda _, days: {day.date for day in days} & {yesterday.date})
    scope = Scope(None, min_age_s=0, stores=[settings.gateway.fallback_dir])
    found = reconcile_sources(settings, Scope(None, 0, scope.stores, dry_run=True))
    done = reconcile_sources(settings, scope)
    after = certify_alone(settings, DAY)
    assert wait_until_caught_up(settings, _RECOVERS_S).is_caught_up  # with what reconcile produced
    still_missing, wrong = _missing(settings, load.answered), _wrongly_shown(settings, load.answered)
    copies = _sent_again(settings)
    lost = sum(one.written_back for one in found)
    missing_rows = {(version.kind, version.row_id) for version in missing}
    is_lost = str(yesterday) in nights and rows(
        settings, "SELECT 1 FROM publication WHERE day = %s", (yesterday.date,), "batch"
    ) == []  # fmt: skip
    changes, unrecovered = int(mode is not Mode.NONE), certificate.count("unrecovered")
    promises: dict[str, list[object]] = {
        "an answered row is missing": [*still_missing],
        "synchronous replication lost an answered row": [*missing] if mode is not Mode.ASYNCHRONOUS else [],
        "nothing was lost, so nothing is proved": ["rows"] if mode is Mode.ASYNCHRONOUS and not missing else [],
        "reconcile did not name a lost row": [] if lost >= len(missing_rows) else [f"{lost} of {len(missing_rows)}"],
        "reconcile did something else": _odd(done, found),
        "the certificate does not tell": [] if (before.count("unrecovered"), unrecovered) == (0, changes)
        and (certificate.reason is None) == (not changes) else [certificate.reason],
        "the day is not certified afterwards": [] if after.reason is None else [after.reason],
        "a publication was lost and the night does not find it": [] if is_lost == (mode is Mode.ASYNCHRONOUS)
        else [nights],
        "an id was given twice": [each for each, times in load.made.items() if times > 1],
        "the view shows a board wrongly": wrong,
        "a record was sent twice": [*copies] if settings.stream.delivery == EXACTLY_ONCE else [],
        "a row was not found": [load.statuses[404]] if mode is not Mode.ASYNCHRONOUS and load.statuses[404] else [],
        "an odd answer": [status for status in load.statuses if status not in (200, 201, 404, 503)],
    }  # fmt: skip
    figures: dict[str, object] = {
        "answered": len(load.answered), "503": load.statuses[503], "404": load.statuses[404], "missing": len(missing),
        "written back": sum(one.written_back for one in done), "unnamed": sum(one.without_record for one in done),
        "copies": copies.total(), "drivers": len(parts.driver.ended) + 1, "broken": sum(map(len, promises.values())),
        "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    return Round(mode, figures, {name: where for name, where in promises.items() if where})


def _odd(done: list[Reconciled], found: list[Reconciled]) -> list[object]:
    """The counts of a run that differ from those of its dry run, or show records that Kafka refused."""
    return [one for one, dry in zip(done, found, strict=True)
            if one.refused or one.with_tombstone or one.written_back != dry.written_back]  # fmt: skip


def _missing(settings: Settings, answered: list[Version]) -> list[Version]:
    """Return the answered versions that are not in the tables, neither they nor a newer one.

    A row that was created and deleted after the last replicated transaction does not come back: it is deleted.
    """
    deleted = {(version.kind, version.row_id) for version in answered if version.text is None}
    saved = {(kind, row_id): (at, is_deleted, text) for kind, row_id, at, is_deleted, text in
             rows(settings, _SAVED, role="pipeline_owner")}  # fmt: skip
    missing: list[Version] = []
    for version in answered:
        at, is_deleted, text = saved.get((version.kind, version.row_id), (None, False, None))
        wanted = parse_timestamp(version.at)
        is_there = (version.kind, version.row_id) in deleted if at is None else (
            at > wanted or (at == wanted and (is_deleted if version.text is None else text == version.text))
        )  # fmt: skip
        if not is_there:
            missing.append(version)
    return missing


def _wrongly_shown(settings: Settings, answered: list[Version]) -> list[object]:
    """Return the boards that the view does not show exactly once and in a version that is not older than answered."""
    shown: dict[int, list[str]] = {}
    for board_id, title in rows(settings, _SHOWN, role="batch"):
        shown.setdefault(board_id, []).append(title)
    saved = {row_id: (is_deleted, text) for kind, row_id, _, is_deleted, text in rows(settings, _SAVED)
             if kind == "boards"}  # fmt: skip
    wrong: list[object] = []
    for board_id in {version.row_id for version in answered if version.kind == "boards"}:
        is_deleted, title = saved.get(board_id, (True, None))
        if shown.get(board_id, []) != ([] if is_deleted else [title]):
            wrong.append((board_id, shown.get(board_id), saved.get(board_id)))
    return wrong


def _sent_again(settings: Settings) -> Counter[tuple[int | None, tuple[int, int]]]:
    """Return how often each record of the stream is in the output again, by its key and its partition and offset."""
    log, kafka = Log(settings.pipeline), settings.kafka
    for record in TopicReader(kafka.bootstrap_servers, kafka.partitions).read_on(settings.pipeline.output.name):
        log.take(record)
    sent = Counter((each.key, each.source) for each in log.details)
    return sent - Counter([*sent])


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of(
        "Kills a primary under load, promotes its standby, looks for what is lost.", one_round=True
    )
    parser.set_defaults(rounds=len(Mode))
    parser.add_argument("--delivery", choices=(AT_LEAST_ONCE, EXACTLY_ONCE), default=AT_LEAST_ONCE)
    arguments = frame.parsed(parser)
    if arguments.pipeline != SITE_NAME:
        parser.error(f"--pipeline {arguments.pipeline}: its database has no tables of the site")
    return frame.prove("failover", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    modes = [list(Mode)[number % len(Mode)] for number in range(arguments.rounds)]
    done = []
    for number, mode in frame.chosen(arguments, modes):
        done.append(run(folder / f"round-{number}", mode, f"{arguments.seed}-{number}", arguments.delivery))
        print(f"round {number}: {mode}", flush=True)
        frame.print_broken(done[-1].broken)
    frame.print_table([{"round": number, **one.figures} for number, one in enumerate(done)])
    return not any(one.broken for one in done)


if __name__ == "__main__":
    sys.exit(main())
