"""The load of a pipeline: records of its stream and its table in the topics, seeded, with new keys in each round."""

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

from include.contracts.clock import rfc3339
from include.contracts.definition import Definition
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from include.contracts.topics import Topic
from tests.fakes.events import AT
from tests.faults.stream_topics import KNOWN
from tests.support.records import value_of

KEYS_A_ROUND = 1_000_000
TABLE_KEYS = 60
_EPOCH = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
_FULL_SPEED = 4_000  # records at the full rate; then few, so that a long round is no larger than the others
_TRICKLE = 20.0  # records a second
_PAUSE_S = 0.02
_FLUSH_S = 120.0
_LATE_S = (0.5, 3.0)
_WEIGHTS = {
    "record": 100, "table changes": 4, "table replayed": 2, "table comes": 8, "table goes": 1,
    "record changes": 20, "record replayed": 6, "record goes": 4, "record copied": 4,
    "record of an unknown key": 3, "bad record": 4, "bad table record": 2, "bad detail": 1,
    "record beyond the years": 1, "dated ahead": 2, "record with odd headers": 1, "key of twenty digits": 1,
}  # fmt: skip
_WRONG = {
    "long": "x", "string": "a\0b", "timestamp": "gestern", "decimal": "1e3", "boolean": "true", "date": "2026-02-30",
}  # fmt: skip


def impossible_values(pipeline: Definition) -> dict[str, str]:
    """Return the bad values that cannot exist for a pipeline, each with the reason."""
    types = {field.type for field in (*pipeline.stream.fields, *pipeline.table.fields)}
    return {f"bad {name}": f"{pipeline.name} has no such field" for name in sorted(_WRONG.keys() - types)}


@dataclass
class TableKey:
    """A key of the table. `known` is the offset of its newest acknowledged record; None before there is one."""

    key: int
    known: int | None = None


@dataclass
class Load:
    """Produces until told to stop. Whatever happens to the broker, everything it made is in the topics at the end."""

    pipeline: Definition
    bootstrap_servers: str
    seed: int
    number: int
    rate: float
    earlier: "Load | None" = None
    unknown: list[TableKey] = field(default_factory=list)  # joined by records of the stream, without a record
    made: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.seed}-{self.number}")
        self._base = self.number * KEYS_A_ROUND
        self._ids = iter(range(self._base + 1, self._base + KEYS_A_ROUND))
        self._clock = 0
        self._most = math.inf
        self._table: list[TableKey] = []
        self._sent: list[dict[str, Any]] = []  # the newest version of each record of the stream
        self._late: list[tuple[float, int, TableKey]] = []
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
        self._table = [self._new_table_key() for _ in range(TABLE_KEYS)]
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
                self._send_table(heapq.heappop(self._late)[2])
            self._producer.poll(_PAUSE_S)
        for _, _, of in self._late:
            self._send_table(of)
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
        """After it has run: send new versions, deletions and copies of some records, new ones, and unknown keys."""
        self._open()
        for of in self._some(self.unknown, 0.5):
            self._send_table(of)
        for value in self._some(self._sent, 0.2):
            self._random.choice((self._change, self._delete, self._replay, self._copy))(value)
        for of in self._some(self._table, 0.2):
            self._send_new(of)
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
        """Send the records that arrive a round later: those that others wait for, and changes of settled records."""
        for of in self._some(earlier.unknown, 0.5):
            self._send_table(of)
        for of in self._some(earlier._table, 0.2):
            self._random.choice((self._send_table, self._send_table, self._delete_table))(of)
        for value in self._some(earlier._sent, 0.05):
            self._random.choice((self._change, self._delete))(value)

    def _some(self, things: list[Any], part: float) -> list[Any]:
        return self._random.sample(things, int(len(things) * part))

    def _make(self, kind: str) -> None:
        match kind:
            case "record":
                self._send_new(self._random.choice(self._table))
            case "record of an unknown key":
                self.unknown.append(TableKey(next(self._ids)))
                self._send_new(self.unknown[-1])
            case "table comes":
                of = TableKey(next(self._ids))
                for _ in range(self._random.randint(1, 3)):
                    self._send_new(of)
                self._table.append(of)
                due = time.monotonic() + self._random.uniform(*_LATE_S)
                heapq.heappush(self._late, (due, of.key, of))
            case "table changes":
                self._send_table(self._random.choice(self._table))
            case "table goes":
                self._delete_table(self._random.choice(self._table))
            case "table replayed":
                self._send_table(self._random.choice(self._table), self._past())
            case "bad table record":
                good = value_of(self.pipeline.table, next(self._ids), self._clock)
                self._send_bad(self.pipeline.table, good)
            case "bad detail":
                self._send(self.pipeline.output.name, next(self._ids), b"none of the join's")
            case "bad record":
                self._send_bad(self.pipeline.stream, self._value(self._random.choice(self._table), AT))
            case "record beyond the years":  # of an unknown key: nobody must make a day of it while it would wait
                version, day = self.pipeline.stream.version_field, self.pipeline.day_field
                value = self._value(TableKey(next(self._ids)), AT)
                value |= self._random.choice([{version: "0001-01-01T00:00:00Z"}, {day: "9999-12-31T20:00:00Z"}])
                self._send_stream(value)
            case "dated ahead":
                self._send_dated_ahead()
            case "record with odd headers":
                odd_id = self._random.choice([b"a\0b", b"\xff", b"", b"e" * 60_000])
                self._send_new(self._random.choice(self._table), [(EVENT_ID, odd_id), (ACCEPTED_AT, b"gestern")])
            case "key of twenty digits":
                topics = [self.pipeline.table, self.pipeline.stream, self.pipeline.output]
                key = self._random.choice(["12345678901234567890", "0" * 30 + "7", "9" * 5_000])
                self._send(self._random.choice(topics).name, key, None)
            case _ if self._sent:
                action: dict[str, Callable[[dict[str, Any]], None]] = {
                    "record changes": self._change, "record replayed": self._replay,
                    "record goes": self._delete, "record copied": self._copy,
                }  # fmt: skip
                action[kind](self._random.choice(self._sent))

    def _new_table_key(self) -> TableKey:
        of = TableKey(next(self._ids))
        self._send_table(of)
        return of

    def _send_table(self, of: TableKey, at: str | None = None) -> None:
        at = at or self._now()
        self._send_known(of, value_of(self.pipeline.table, of.key, self._clock, at))

    def _delete_table(self, of: TableKey) -> None:
        self._send_known(of, None, self._now())

    def _send_known(self, of: TableKey, value: Any, accepted_at: str | None = None) -> None:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                of.known = message.offset()

        self._send(self.pipeline.table.name, of.key, value, note, accepted_at=accepted_at)

    def _value(self, of: TableKey, at: str, key: int | None = None) -> dict[str, Any]:
        value = value_of(self.pipeline.stream, key or next(self._ids), self._clock, at)
        return value | {self.pipeline.join_field: of.key}

    def _version(self, value: dict[str, Any], of: TableKey, at: str) -> dict[str, Any]:
        """Return another version of the record; its day stays."""
        day = self.pipeline.day_field
        return self._value(of, at, value[self.pipeline.stream.key_field]) | {day: value[day]}

    def _send_new(self, of: TableKey, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        value = self._value(of, self._now())
        self._sent.append(value)
        self._send_stream(value, of, headers)

    def _change(self, value: dict[str, Any]) -> None:
        of = self._random.choice(self._table)
        value |= self._version(value, of, self._now())
        self._send_stream(value, of)

    def _replay(self, value: dict[str, Any]) -> None:
        """Send an older version again, which must not replace the newer one."""
        of = self._random.choice([*self._table, *self.unknown])
        self._send_stream(self._version(value, of, self._past()), of)

    def _copy(self, value: dict[str, Any]) -> None:
        """Send the same version again, as a replay of the gateway's would."""
        self._send_stream(value)

    def _delete(self, value: dict[str, Any]) -> None:
        accepted_at = self._now() if self._random.random() < 0.9 else None
        self._send(self.pipeline.stream.name, value[self.pipeline.stream.key_field], None, accepted_at=accepted_at)

    def _send_dated_ahead(self) -> None:
        """Send a version or a deletion of tomorrow, as a clock that is wrong makes it: it must have no effect."""
        tomorrow = rfc3339(dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
        of = self._random.choice(self._table)
        table, stream = self.pipeline.table, self.pipeline.stream
        known = self._random.choice(self._sent) if self._sent else None
        match self._random.randrange(4):
            case 0:
                value = value_of(table, of.key, self._clock, AT) | {table.version_field: tomorrow}
                self._send(table.name, of.key, value)
            case 1:
                self._send(table.name, of.key, None, accepted_at=tomorrow)
            case 2 if known:
                self._send(stream.name, known[stream.key_field], None, accepted_at=tomorrow)
            case _:
                value = known or self._value(of, AT)
                self._send(stream.name, value[stream.key_field], value | {stream.version_field: tomorrow})

    def _send_stream(
        self, value: dict[str, Any], of: TableKey | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        topic = self.pipeline.stream
        self._send(topic.name, value[topic.key_field], value, known=of.known if of else None, first=headers)

    def _send_bad(self, topic: Topic, good: dict[str, Any]) -> None:
        values: list[Any] = [b"{nonsense", b"\xff\xfe", [good], None, good | {topic.key_field: 1}]
        values += [good | {field.name: _WRONG[field.type]} for field in topic.fields]
        values += [good | {field.name: None} for field in topic.fields if not field.nullable]
        value = self._random.choice(values)
        self._send(topic.name, "x" if value is None else good[topic.key_field], value)

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

    def _now(self) -> str:
        """Return a unique time for each version, so that a later version is newer."""
        self._clock += 1
        return rfc3339(_EPOCH + dt.timedelta(hours=self.number, milliseconds=self._clock))

    def _past(self) -> str:
        back = self._random.randint(1, 5_000)
        return rfc3339(_EPOCH + dt.timedelta(hours=self.number, milliseconds=self._clock - back))
