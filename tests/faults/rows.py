"""Members made, changed and deleted through the gateway without a key, and what must be in their topic."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Message

from include.contracts.clock import rfc3339
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from include.database.sessions import connect
from include.runtime.settings import DatabaseSettings
from tests.faults.closed_load import ClosedLoad
from tests.faults.connection import Answer, Connection, Unanswered

_PAUSE_S = 0.02
_ROWS = "SELECT id, modified_at FROM site.member"


class Version(NamedTuple):
    """A version of a row, and the identity of its event."""

    row_id: int
    at: str
    event_id: str = ""


class RowLoad(ClosedLoad):
    """Clients that each change rows of their own, one call after the other; none is made again."""

    def __init__(self, url: str, token: str, seed: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.answered: list[Version] = []
        self.odd: list[str] = []
        self.unavailable = 0  # answers of 503
        super().__init__(url, seed, "row-load")

    async def _client(self, chance: random.Random, connection: Connection) -> None:
        mine: list[int] = []
        while not self._is_stopping.is_set():
            method = chance.choice(("POST", "PUT", "PUT", "DELETE")) if mine else "POST"
            row_id = chance.choice(mine) if method != "POST" else None
            fields = {"nickname": f"m{chance.random()}", "city": None, "phone": None, "email": None}
            body = b"" if method == "DELETE" else msgspec.json.encode(fields)
            path = "/members" if row_id is None else f"/members/{row_id}"
            try:
                answer = await connection.call(method, path, body, self._headers)
            except Unanswered:
                continue
            finally:
                if method == "DELETE" and row_id is not None:
                    mine.remove(row_id)  # perhaps deleted
            self._learn(method, answer, mine)
            await asyncio.sleep(_PAUSE_S)
        connection.close()

    def _learn(self, method: str, answer: Answer, mine: list[int]) -> None:
        if answer.status in (200, 201):
            content = msgspec.json.decode(answer.body)
            self.answered.append(Version(content["id"], content["modifiedAt"], content["eventId"]))
            if method == "POST":
                mine.append(content["id"])
        elif answer.status == 503:
            self.unavailable += 1
        else:
            self.odd.append(f"{method} of a member was answered {answer.status}")


def saved(database: DatabaseSettings) -> list[Version]:
    """Return the newest version of each row of the system of record."""
    with connect(database, "gateway", "faults") as connection, connection.cursor() as cursor:
        cursor.execute(_ROWS)
        return [Version(row_id, rfc3339(modified_at)) for row_id, modified_at in cursor.fetchall()]


def version_of(message: Message) -> Version:
    """Return the version of a record of the topic."""
    headers = dict(message.headers() or [])
    value: dict[str, Any] = msgspec.json.decode(message.value() or b"{}")
    at = value.get("modifiedAt") or (headers[ACCEPTED_AT] or b"").decode()
    return Version(int(message.key() or b"0"), at, (headers[EVENT_ID] or b"").decode())


def missing_versions(answered: Iterable[Version], copies: Iterable[Version]) -> list[str]:
    """Return the acknowledged versions that are not in the topic."""
    published = {(row_id, at) for row_id, at, _ in copies}
    return [
        f"member {row_id} of {at}, answered with {event_id}"
        for row_id, at, event_id in answered
        if (row_id, at) not in published
    ]


def judge_rows(answered: list[Version], rows: Iterable[Version], copies: list[Version]) -> list[str]:
    """The broken promises: each version has one identity, which is its own, and no row's newest version is missing."""
    return list(_broken(answered, rows, copies))


def _broken(answered: list[Version], rows: Iterable[Version], copies: list[Version]) -> Iterator[str]:
    identities, owners = defaultdict(set), defaultdict(set)
    for row_id, at, event_id in [*copies, *answered]:
        identities[row_id, at].add(event_id)
        owners[event_id].add((row_id, at))
    for version, found in identities.items():
        if len(found) > 1:
            yield f"member {version} has {len(found)} event ids: {', '.join(sorted(found))}"
    for event_id, versions in owners.items():
        if len(versions) > 1:
            yield f"event id {event_id} is of {sorted(versions)}"
    published = {(row_id, at) for row_id, at, _ in copies}
    for row_id, at, _ in rows:
        if (row_id, at) not in published:
            yield f"member {row_id} of {at} was saved, and is not in the topic"
