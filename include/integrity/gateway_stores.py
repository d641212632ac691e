"""Accounts for every fallback store that ever answered. A gateway that is lost with its disk takes its events along."""

import datetime as dt
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.sessions import connect
from include.errors import PipelineError, Retryable
from include.integrity.gateways import Unsent, unsent
from include.settings import Settings
from include.sql.named import query

log = logging.getLogger(__name__)

_APPLICATION = "gateway stores"


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


def note_stores(settings: Settings, answers: Iterable[tuple[str, Unsent]]) -> dt.datetime:
    """Note the stores that answered, with their addresses; returns the time of the note, for `missing_stores`.

    A store that was given up and answers again is no longer given up. Raises DatabaseUnavailable.
    """
    known = sorted((held.store_id, url, held) for url, held in answers if held.store_id is not None)
    params = {
        "store_ids": [store_id for store_id, _, _ in known],
        "urls": [url for _, url, _ in known],
        "waiting": [held.waiting for _, _, held in known],
        "set_aside": [held.set_aside for _, _, held in known],
        "lost": [held.lost for _, _, held in known],
    }
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        cursor.execute(query("note_stores", cursor), params)
        noted_at: dt.datetime = cursor.fetchone()[0]
    return noted_at


def missing_stores(
    cursor: Cursor, answers: Mapping[str, object], noted_at: dt.datetime | None = None
) -> list[MissingStore]:
    """Return the stores that are not among the answers and that nobody gave up, by the time of their last answer.

    A store whose address is there with something else than an answer is left out: its gateway may still have it.
    `noted_at`: the time of the answers' note; a store that was noted since is not missing.
    """
    params = {
        "answered": [held.store_id for held in answers.values() if isinstance(held, Unsent) and held.store_id],
        "silent": [url for url, held in answers.items() if not isinstance(held, Unsent)],
        "noted_at": noted_at or "infinity",
    }
    cursor.execute(query("select_missing_stores", cursor), params)
    return [MissingStore(str(row[0]), *row[1:]) for row in cursor.fetchall()]


def require_stores_read(settings: Settings) -> None:
    """Raise StoresUnread unless every store that ever answered has sent all its events, or was given up.

    Raises GatewayUnavailable, DatabaseUnavailable.
    """
    held = unsent(settings)
    noted_at = note_stores(settings, held.items())
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        missing = missing_stores(cursor, held, noted_at)
    unread = {url: each.total for url, each in held.items() if each.total} | {
        each.store_id: "missing" for each in missing
    }
    if unread:
        raise StoresUnread(stores=unread)


def give_up_store(settings: Settings, store: str, reason: str, made_by: str) -> MissingStore:
    """Accept that the events of a missing store are lost, and return what it had when it last answered.

    It no longer keeps days from being certified, unless it answers again. Raises NotMissing, DatabaseUnavailable.
    """
    params = {"store_id": store.strip().lower(), "reason": reason, "made_by": made_by}
    with connect(settings.database, "batch", _APPLICATION) as connection, connection.cursor() as cursor:
        cursor.execute(query("give_up_store", cursor), params)
        row = cursor.fetchone()
    if row is None:
        raise NotMissing("no store with this id is missing: see `watch` for those that are", store=store)
    given_up = MissingStore(str(row[0]), *row[1:])
    log.warning("%s: given up by %s: %s", given_up, made_by, reason)
    return given_up
