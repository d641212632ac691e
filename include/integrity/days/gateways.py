"""Asks every gateway for the events in its fallback store. They are in no topic, so no rebuild has them.

Every store that ever answered is accounted for: a gateway that is lost with its disk takes its events along.
"""

import dataclasses
import datetime as dt
import logging
import uuid
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import ConfigurationError, PipelineError, Retryable
from include.database.named import query
from include.database.sessions import connect
from include.gateway.client import GatewayClient, GatewayUnavailable, ReplayReport, no_answer
from include.gateway.client import replay_fallback as replay_one
from include.runtime.settings import GatewaySettings, Settings

log = logging.getLogger(__name__)


_ASKED_AT_ONCE = 16


class FallbackNotDrained(Retryable):
    """A gateway's fallback store still holds events; a rebuild now would miss them."""


@dataclass(frozen=True)
class Unsent:
    """Numbers of events that a gateway answered with 2xx and that are in no topic.

    `waiting`: to be sent. `set_aside`: refused by Kafka. `lost`: destroyed by damage of the store, and not yet
    acknowledged by a person. `oldest_s` is the age of the oldest one that waits.
    `store_id` is a UUID in its canonical form. `clock_ahead_s`: seconds by which the gateway's clock is ahead of the
    Kafka brokers'; None if it does not know.
    """

    waiting: int
    set_aside: int
    lost: int
    oldest_s: float = 0.0
    store_id: str = field(kw_only=True)
    clock_ahead_s: float | None = None

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.waiting + self.set_aside + self.lost


def gateways(settings: Settings) -> list[GatewaySettings]:
    """Return the settings of each gateway: GATEWAY_URL may name several, separated by commas. They share the tokens."""
    urls = [url.strip().rstrip("/") for url in settings.gateway.url.split(",") if url.strip()]
    return [dataclasses.replace(settings.gateway, url=url) for url in dict.fromkeys(urls)]


def unsent(settings: Settings, timeout_s: float = 15.0) -> Mapping[str, Unsent]:
    """Return the events of each gateway that are in no topic, by its address.

    Asks all gateways at once, and blocks up to the timeout. Raises GatewayUnavailable, which names each gateway that
    is, and ConfigurationError without an admin token.
    """
    found = unsent_or_reason(settings, timeout_s)
    if missing := [f"{url}: {answer}" for url, answer in found.items() if isinstance(answer, GatewayUnavailable)]:
        raise GatewayUnavailable("; ".join(missing))
    for answer in found.values():
        if isinstance(answer, PipelineError):
            raise answer
    return {url: answer for url, answer in found.items() if isinstance(answer, Unsent)}


def unsent_or_reason(settings: Settings, timeout_s: float) -> Mapping[str, Unsent | PipelineError]:
    """Return the same of the gateways that answered, and of each other one the error. Blocks up to the timeout."""
    if not settings.gateway.admin_token:
        missing = ConfigurationError("GATEWAY_ADMIN_TOKEN is not set; asking a gateway for its backlog needs it")
        return {gateway.url: missing for gateway in gateways(settings)}
    pool = ThreadPoolExecutor(_ASKED_AT_ONCE)
    asked = {gateway.url: pool.submit(_ask, gateway, timeout_s) for gateway in gateways(settings)}
    wait(asked.values(), timeout_s)  # the client's own timeout is one for each read
    pool.shutdown(wait=False, cancel_futures=True)
    return _each_store_once({url: _answer(each, timeout_s) for url, each in asked.items()})


def _each_store_once(answers: Mapping[str, Unsent | PipelineError]) -> Mapping[str, Unsent | PipelineError]:
    """Replace answers with a store that an earlier address had by an error: its events would count twice."""
    found: dict[str, Unsent | PipelineError] = {}
    address_of: dict[str, str] = {}
    for url, answer in answers.items():
        found[url] = answer
        if isinstance(answer, Unsent):
            earlier = address_of.setdefault(answer.store_id, url)
            if earlier != url:
                found[url] = ConfigurationError(
                    f"GATEWAY_URL: {earlier} and {url} answer with the same fallback store, {answer.store_id}; name "
                    "each gateway once, by an address of its own"
                )
    return found


def _answer(asked: Future[Unsent], timeout_s: float) -> Unsent | PipelineError:
    try:
        return asked.result(0)
    except (TimeoutError, CancelledError):
        return GatewayUnavailable(no_answer(timeout_s))
    except PipelineError as exc:
        return exc


def _ask(gateway: GatewaySettings, timeout_s: float) -> Unsent:
    with GatewayClient(gateway, timeout_s) as client:
        held = client.fallback()
    try:
        return Unsent(
            held["backlog"], held["refused"], held["lost"], held["oldestAgeS"], held["clockAheadS"],
            store_id=str(uuid.UUID(held["storeId"])),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, AttributeError):
        strange = "HTTP 200 that is not a gateway's"
        raise GatewayUnavailable(url=gateway.url, call="GET /fallback", reason=strange) from None


def replay_fallback(settings: Settings, timeout_s: float = 300.0) -> ReplayReport:
    """Have the gateways drain their stores, one after the other; returns the sums. See `client.replay_fallback`.

    Raises FallbackNotDrained if events are left, and the errors of `client.replay_fallback`.
    """
    reports = [replay_one(dataclasses.replace(settings, gateway=gateway), timeout_s) for gateway in gateways(settings)]
    if left := sum(report.left for report in reports):
        raise FallbackNotDrained(left=left)
    sent, refused = sum(report.sent for report in reports), sum(report.refused for report in reports)
    return ReplayReport(sent=sent, left=0, refused=refused)


_APPLICATION = "gateway stores"
_ASK_S = 15.0


class NotMissing(PipelineError):
    """No store with this id is missing: it answers, was given up before, or was never seen."""


class StoresUnread(Retryable):
    """A store of a gateway has accepted events that are in no topic, or is missing: see `watch`."""


@dataclass(frozen=True)
class MissingStore:
    """A store that answered at `url` until `seen_at`, and the numbers of events that it had then, see `Unsent`.

    Events that it accepted after that are unknown.
    """

    store_id: str
    url: str
    seen_at: dt.datetime
    waiting: int
    set_aside: int
    lost: int

    def __str__(self) -> str:
        return (
            f"store {self.store_id} of {self.url}, which last answered {self.seen_at:%Y-%m-%d %H:%M:%S} UTC, with "
            f"{self.waiting:,} events waiting, {self.set_aside:,} set aside and {self.lost:,} lost"
        )


def note_stores(settings: Settings, answers: Mapping[str, object]) -> None:
    """Note the stores that answered, with their addresses; other answers than `Unsent` are ignored.

    A store that was given up and answers again is no longer given up. Raises DatabaseUnavailable.
    """
    known = sorted((held.store_id, url, held) for url, held in answers.items() if isinstance(held, Unsent))
    params = {
        "store_ids": [store_id for store_id, _, _ in known],
        "urls": [url for _, url, _ in known],
        "waiting": [held.waiting for _, _, held in known],
        "set_aside": [held.set_aside for _, _, held in known],
        "lost": [held.lost for _, _, held in known],
    }
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        cursor.execute(query("note_stores", cursor), params)


def missing_stores(cursor: Cursor, answers: Mapping[str, object]) -> list[MissingStore]:
    """Return the noted stores that are not among the answers and that nobody gave up.

    A store whose address is there with something else than an answer is left out: its gateway may still have it. One
    that another program noted since the answers counts as missing: its events are not in these answers.
    """
    cursor.execute(query("select_missing_stores", cursor), _params(answers))
    return [MissingStore(str(row[0]), *row[1:]) for row in cursor.fetchall()]


def missing_stores_term(answers: Mapping[str, object], cursor: Cursor) -> tuple[str, Mapping[str, object]]:
    """Return the statement that counts them again, with its parameters."""
    return query("term_missing_stores", cursor), _params(answers)


def require_stores_read(settings: Settings) -> None:
    """Raise StoresUnread unless every store that ever answered has sent all its events, or was given up.

    Raises GatewayUnavailable, DatabaseUnavailable.
    """
    held = unsent(settings)
    note_stores(settings, held)
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        missing = missing_stores(cursor, held)
    unread = {url: each.total for url, each in held.items() if each.total} | {
        each.store_id: "missing" for each in missing
    }
    if unread:
        raise StoresUnread(stores=unread)


def give_up_store(settings: Settings, store: str, reason: str, made_by: str) -> MissingStore:
    """Accept that the events of a missing store are lost, and return what it had when it last answered.

    It no longer keeps days from being certified, unless it answers again. Blocks on every gateway. Raises NotMissing,
    DatabaseUnavailable, and ConfigurationError without an admin token.
    """
    store = store.strip().lower()
    answers = unsent_or_reason(settings, _ASK_S)
    for url, held in answers.items():
        if isinstance(held, ConfigurationError):
            raise held
        if isinstance(held, Unsent) and held.store_id == store:
            raise NotMissing("the store answers", store=store, url=url)
    params = {"store_id": store, "reason": reason, "made_by": made_by}
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        cursor.execute(query("give_up_store", cursor), params)
        row = cursor.fetchone()
    if row is None:
        raise NotMissing("no store with this id is missing: see `watch` for those that are", store=store)
    given_up = MissingStore(str(row[0]), *row[1:])
    log.warning("%s: given up by %s: %s", given_up, made_by, reason)
    return given_up


def _params(answers: Mapping[str, object]) -> dict[str, list[str]]:
    return {
        "answered": [held.store_id for held in answers.values() if isinstance(held, Unsent)],
        "silent": [url for url, held in answers.items() if not isinstance(held, Unsent)],
    }
