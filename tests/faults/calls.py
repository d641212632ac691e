"""The calls of the load: seeded, each event with a serial of its own, and what their answers mean."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from include.contracts.clock import Clock, rfc3339
from include.contracts.definition import Definition
from tests.faults.connection import Answer
from tests.faults.journal import Entry
from tests.support.records import value_of

KEYS_A_CLIENT = 10
MAX_ARRAY = 20
_FILLER = "Thanks for the quick answer, it works fine now. "
_TOO_LARGE = 1_300_000  # characters: more than a Kafka record may have, less than a call may have
_WEIGHTS = {"single": 60, "array": 18, "without key": 10, "invalid": 4, "mixed array": 4, "stranger": 2, "large": 0.2}


@dataclass
class Call:
    """One call. `wanted` has the status that each event of it deserves: 201, or that of its refusal."""

    events: list[dict[str, Any]]
    wanted: list[int]
    is_array: bool
    key: str | None
    token: str
    settled: dict[int, Entry] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.events if self.is_array else self.events[0])

    @property
    def headers(self) -> dict[str, str]:
        made = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return made if self.key is None else {**made, "Idempotency-Key": self.key}

    @property
    def is_settled(self) -> bool:
        return len(self.settled) == len(self.events)

    def learn(self, answer: Answer) -> list[Entry]:
        """Return the new entries from the response: events whose outcome it settles, and wrong responses."""
        new = []
        for index, (status, result) in enumerate(self._results(answer)):
            entry = self._entry(index, status, result)
            if entry is None:
                continue
            before = self.settled.get(index)
            if before is None:
                self.settled[index] = entry
                new.append(entry)
            elif (entry.outcome, entry.event_id) != (before.outcome, before.event_id):
                problem = f"first {before.outcome} {before.event_id}, then {entry.outcome} {entry.event_id}"
                new.append(msgspec.structs.replace(entry, outcome="odd", problem=problem))
        return new

    def give_up(self) -> list[Entry]:
        """Return entries of unsettled events whose call cannot be repeated."""
        new = {n: Entry("unknown", e["serial"]) for n, e in enumerate(self.events) if n not in self.settled}
        self.settled |= new
        return list(new.values())

    def _results(self, answer: Answer) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            content = msgspec.json.decode(answer.body)
            results = content.get("results", [content] * len(self.events))
        except (msgspec.DecodeError, AttributeError):
            content, results = {}, [{}] * len(self.events)
        for result in results:
            yield result.get("status", answer.status), result

    def _entry(self, index: int, status: int, result: dict[str, Any]) -> Entry | None:
        serial, wanted = self.events[index]["serial"], self.wanted[index]
        if status == 503:
            return None
        if status == 201 and "eventId" in result:
            entry = Entry("kept", serial, result["eventId"], result["keptIn"], status)
        elif 400 <= status < 500:
            entry = Entry("refused", serial, status=status)
        else:
            return Entry("odd", serial, status=status, problem=f"answered {status}")
        if status != wanted:
            return msgspec.structs.replace(entry, outcome="odd", problem=f"answered {status} in place of {wanted}")
        return entry


class Caller:
    """Makes the calls of one client, which send records of a pipeline's stream.

    Its keys are its own, and no call has a key twice: it sends them in order. Versions are of the present.
    """

    def __init__(
        self, pipeline: Definition, round_number: int, client: int, seed: int, token: str, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._round = round_number
        self._client = client
        self._token = token
        self._clock = clock
        self._random = random.Random(f"{seed}-{round_number}-{client}")
        self._keys = [(round_number * 1000 + client) * 100 + n for n in range(KEYS_A_CLIENT)]
        self._number = self._calls = 0

    def next_call(self) -> Call:
        """Return a random call."""
        [kind] = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        self._calls += 1
        key = f"{self._round}.{self._client // 2}.{self._calls}"  # two senders have the same keys
        match kind:
            case "array":
                count = self._random.randint(2, min(MAX_ARRAY, KEYS_A_CLIENT))
                return Call(self._events(count), [201] * count, True, key, self._token)
            case "mixed array":
                events = self._events(3)
                del events[1][self._pipeline.stream.version_field]
                return Call(events, [201, 400, 201], True, key, self._token)
            case "without key":
                return Call(self._events(1), [201], False, None, self._token)
            case "invalid":
                [event] = self._events(1)
                return Call([event | {self._pipeline.join_field: "seven"}], [400], False, key, self._token)
            case "stranger":
                return Call(self._events(1), [401], False, key, "nobody")
            case "large":
                [event] = self._events(1)
                return Call([event | {"large": "x" * _TOO_LARGE}], [413], False, key, self._token)
        return Call(self._events(1), [201], False, key, self._token)

    def is_repeated(self) -> bool:
        """True if an answered call is to be repeated, as by a sender that missed the response."""
        return self._random.random() < 0.03

    def _events(self, count: int) -> list[dict[str, Any]]:
        return [self._event(key) for key in self._random.sample(self._keys, count)]

    def _event(self, key: int) -> dict[str, Any]:
        self._number += 1
        filler = _FILLER * self._random.choice((1, 6, 6, 6, 40))
        serial = f"{self._round}.{self._client}.{self._number}"
        stream = self._pipeline.stream
        value = value_of(stream, key, self._number) | {stream.version_field: rfc3339(self._clock.now())}
        return value | {"filler": filler, "serial": serial}
