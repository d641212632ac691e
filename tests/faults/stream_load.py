"""The load of the speed layer: members and boards produced to the topics, seeded, with new ids in each round."""

import contextlib
import datetime as dt
import heapq
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from include.clock import rfc3339
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from tests.fakes.events import board, member
from tests.faults.stream_topics import KNOWN

_BEYOND_THE_YEARS = ({"modifiedAt": "0001-01-01T00:00:00Z"}, {"createdAt": "9999-12-31T20:00:00Z"})
KEYS_A_ROUND = 1_000_000
MEMBERS = 60
_EPOCH = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
_FULL_SPEED = 4_000  # records at the full rate; then few, so that a long round is no larger than the others
_TRICKLE = 20.0  # records a second
_PAUSE_S = 0.02
_FLUSH_S = 120.0
_LATE_S = (0.5, 3.0)
_WEIGHTS = {
    "board": 100, "member changes": 4, "member replayed": 2, "member comes": 8, "member goes": 1,
    "board changes": 20, "board replayed": 6, "board goes": 4, "board copied": 4,
    "board with a stranger": 3, "bad board": 4, "bad member": 2, "bad detail": 1,
    "board beyond the years": 1, "board with odd headers": 1, "key of twenty digits": 1,
}  # fmt: skip


@dataclass
class Person:
    """A member of the load. `known` is the offset of its newest acknowledged record; None before there is one."""

    id: int
    known: int | None = None


@dataclass
class Load:
    """Produces until told to stop. Whatever happens to the broker, everything it made is in the topics at the end."""

    bootstrap_servers: str
    seed: int
    number: int
    rate: float
    earlier: "Load | None" = None
    strangers: list[Person] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.seed}-{self.number}")
        self._base = self.number * KEYS_A_ROUND
        self._ids = iter(range(self._base + 1, self._base + KEYS_A_ROUND))
        self._clock = 0
        self._most = math.inf
        self._people: list[Person] = []
        self._boards: list[dict[str, Any]] = []
        self._late: list[tuple[float, int, Person]] = []
        self._failed: list[str] = []
        self._stopping = threading.Event()
        self._wanted_still, self._is_still = threading.Event(), threading.Event()
        kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        self._kinds: Iterator[str] = iter(lambda: self._random.choices(kinds, weights)[0], "")

    def stop(self) -> None:
        """Produce no more records, and let `run` end."""
        self._stopping.set()

    def stop_after(self, count: float) -> None:
        """Stop after that many records."""
        self._most = count

    def run(self) -> None:
        """Produce until stopped. Raises AssertionError if a record could not be delivered."""
        self._open()
        self._people = [self._new_person() for _ in range(MEMBERS)]
        if self.earlier is not None:
            self._go_on_from(self.earlier)
            self.earlier = None
        began = time.monotonic()
        while not self._stopping.is_set():
            if self._wanted_still.is_set():
                self._stand_still()
            for kind in self._due(began):
                self._make(kind)
            while self._late and self._late[0][0] <= time.monotonic():
                self._say(heapq.heappop(self._late)[2])
            self._producer.poll(_PAUSE_S)
        for _, _, person in self._late:
            self._say(person)
        self._close()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Suspend the load for the block, with all its records in the topics."""
        self._wanted_still.set()
        assert self._is_still.wait(_FLUSH_S), "the load does not stand still"
        try:
            yield
        finally:
            self._is_still.clear()
            self._wanted_still.clear()

    def go_on(self) -> None:
        """After it has run: change, delete and send again some of its boards, post a few, and say who strangers are."""
        self._open()
        for person in self._some(self.strangers, 0.5):
            self._say(person)
        for value in self._some(self._boards, 0.2):
            self._random.choice((self._change, self._delete, self._replay, self._copy))(value)
        for person in self._some(self._people, 0.2):
            self._post(person)
        self._close()

    def _open(self) -> None:
        self._producer = Producer({
            "bootstrap.servers": self.bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 2,
            "enable.idempotence": True, "message.timeout.ms": int(_FLUSH_S * 1000), "log_level": 2,
        })  # fmt: skip

    def _close(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        assert left == 0, f"{left} records were not delivered"
        assert not self._failed, self._failed[:3]
        del self._producer  # it would look for the broker for as long as it lives

    def _stand_still(self) -> None:
        self._close()
        self._is_still.set()
        while self._wanted_still.is_set():
            time.sleep(_PAUSE_S)
        self._open()

    def _due(self, began: float) -> Iterator[str]:
        passed_s = time.monotonic() - began
        while self.made < min(self._most, passed_s * self.rate, _FULL_SPEED + passed_s * _TRICKLE):
            self.made += 1
            yield next(self._kinds)
        if self.made >= self._most:
            self.stop()

    def _go_on_from(self, earlier: "Load") -> None:
        """Send the records that arrive a round later: members that boards wait for, and changes of settled boards."""
        for person in self._some(earlier.strangers, 0.5):
            self._say(person)
        for person in self._some(earlier._people, 0.2):
            self._random.choice((self._say, self._say, self._forget))(person)
        for value in self._some(earlier._boards, 0.05):
            self._random.choice((self._change, self._delete))(value)

    def _some(self, things: list[Any], part: float) -> list[Any]:
        return self._random.sample(things, int(len(things) * part))

    def _make(self, kind: str) -> None:
        match kind:
            case "board":
                self._post(self._random.choice(self._people))
            case "board with a stranger":
                self.strangers.append(Person(next(self._ids)))
                self._post(self.strangers[-1])
            case "member comes":
                person = Person(next(self._ids))
                for _ in range(self._random.randint(1, 3)):
                    self._post(person)
                self._people.append(person)
                due = time.monotonic() + self._random.uniform(*_LATE_S)
                heapq.heappush(self._late, (due, person.id, person))
            case "member changes":
                self._say(self._random.choice(self._people))
            case "member goes":
                self._forget(self._random.choice(self._people))
            case "member replayed":
                self._send_person(self._random.choice(self._people), self._past())
            case "bad member":
                value = member(next(self._ids), nickname=None)
                self._send("member", value["id"], value)
            case "bad detail":
                self._send("board-detail", next(self._ids), b"none of the join's")
            case "bad board":
                self._send_bad_board()
            case "board beyond the years":  # of a stranger: nobody must make a day of it while it would wait
                value = board(next(self._ids), next(self._ids))
                value |= self._random.choice(_BEYOND_THE_YEARS)
                self._send("board", value["id"], value)
            case "board with odd headers":
                odd_id = self._random.choice([b"a\0b", b"\xff", b"", b"e" * 60_000])
                self._post(self._random.choice(self._people), [(EVENT_ID, odd_id), (ACCEPTED_AT, b"gestern")])
            case "key of twenty digits":
                topic = self._random.choice(["member", "board", "board-detail"])
                self._send(topic, self._random.choice(["12345678901234567890", "0" * 30 + "7", "9" * 5_000]), None)
            case _ if self._boards:
                action: dict[str, Callable[[dict[str, Any]], None]] = {
                    "board changes": self._change, "board replayed": self._replay,
                    "board goes": self._delete, "board copied": self._copy,
                }  # fmt: skip
                action[kind](self._random.choice(self._boards))

    def _new_person(self) -> Person:
        person = Person(next(self._ids))
        self._say(person)
        return person

    def _say(self, person: Person) -> None:
        self._send_person(person, self._now())

    def _forget(self, person: Person) -> None:
        self._send_member(person, None, self._now())

    def _send_person(self, person: Person, at: str) -> None:
        value = member(person.id, nickname=f"사람 {person.id} {self._clock}", city=self._city(), modifiedAt=at)
        self._send_member(person, value)

    def _send_member(self, person: Person, value: Any, accepted_at: str | None = None) -> None:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                person.known = message.offset()

        self._send("member", person.id, value, note, accepted_at=accepted_at)

    def _post(self, person: Person, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        at = self._now()
        value = board(next(self._ids), person.id, title=f"제목 {self._clock}", createdAt=at, modifiedAt=at)
        self._boards.append(value)
        self._send("board", value["id"], dict(value), known=person.known, first=headers)

    def _change(self, value: dict[str, Any]) -> None:
        person = self._random.choice(self._people)
        value |= {"title": f"제목 {self._clock}", "modifiedAt": self._now(), "memberId": person.id}
        self._send_board(value, person)

    def _replay(self, value: dict[str, Any]) -> None:
        """Send an older version again, which must not replace the newer one."""
        person = self._random.choice([*self._people, *self.strangers])
        self._send_board({**value, "title": "alt", "modifiedAt": self._past(), "memberId": person.id}, person)

    def _copy(self, value: dict[str, Any]) -> None:
        """Send the same version again, as a replay of the gateway's would."""
        self._send("board", value["id"], dict(value))

    def _delete(self, value: dict[str, Any]) -> None:
        accepted_at = self._now() if self._random.random() < 0.9 else None
        self._send("board", value["id"], None, accepted_at=accepted_at)

    def _send_board(self, value: dict[str, Any], person: Person) -> None:
        self._send("board", value["id"], dict(value), known=person.known)

    def _send_bad_board(self) -> None:
        good = board(next(self._ids), self._random.choice(self._people).id)
        value: Any = self._random.choice(
            [b"{nonsense", b"\xff\xfe", good | {"memberId": "x"}, good | {"title": None}, good | {"title": "a\0b"},
             good | {"modifiedAt": "gestern"}, good | {"id": 1}, [good], None]
        )  # fmt: skip
        self._send("board", "x" if value is None else good["id"], value)

    def _send(
        self,
        topic: str,
        key: object,
        value: Any,
        note: Callable[[KafkaError | None, Message], None] | None = None,
        known: int | None = None,
        accepted_at: str | None = None,
        first: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        headers = [*first, (EVENT_ID, f"{self.number}.{self._clock}".encode())]
        headers += [(KNOWN, str(known).encode())] if known is not None else []
        headers += [(ACCEPTED_AT, accepted_at.encode())] if accepted_at else []
        self._clock += 1
        encoded = value if value is None or isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed.append(str(error))
            if note is not None:
                note(error, message)

        while True:
            try:
                self._producer.produce(topic, encoded, str(key).encode(), headers=headers, on_delivery=delivered)
                return
            except BufferError:  # the broker is away for long
                self._producer.poll(0.5)

    def _city(self) -> str | None:
        return self._random.choice(("서울", "부산", None))

    def _now(self) -> str:
        """Return a unique time for each version, so that a later version is newer."""
        self._clock += 1
        return rfc3339(_EPOCH + dt.timedelta(hours=self.number, milliseconds=self._clock))

    def _past(self) -> str:
        back = self._random.randint(1, 5_000)
        return rfc3339(_EPOCH + dt.timedelta(hours=self.number, milliseconds=self._clock - back))
