"""Accounts for every fallback store that ever answered. A gateway that is lost with its disk takes its events along."""

import datetime as dt
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import ConfigurationError, PipelineError, Retryable
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.gateways import Unsent, unsent, unsent_or_reason
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

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
