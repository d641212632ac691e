"""The plan of a round: random faults at random times, the same for the same seed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """The faults."""

    GATEWAY_KILLED = "gateway killed"
    BROKER_KILLED = "broker killed"
    BROKER_FROZEN = "broker frozen"
    DISK_FULL = "disk full"
    REPLAY_CUT = "gateway killed in its replay"
    RIGHT_LOST = "right to write lost"
    PAGE_DAMAGED = "page damaged"
    ROW_CHANGED = "row changed on disk"
    ANSWERS_LOST = "reconcile while answers are lost"
    OTHER_CLUSTER = "another cluster answers"
    CLOCK_SET = "clock set"


@dataclass(frozen=True)
class Span:
    """One fault from its beginning to its end, in seconds of the round; REPLAY_CUT: since it was seen to replay.

    CLOCK_SET: the gateway's clock is ahead by `wrong_s` meanwhile, or behind.
    """

    fault: Fault
    begin_s: float
    end_s: float
    wrong_s: float = 0.0

    def __str__(self) -> str:
        by = f" by {self.wrong_s:+,.0f} s" if self.wrong_s else ""
        return f"{self.fault}{by} {self.begin_s:.1f}-{self.end_s:.1f} s"


Plan = tuple[Span, ...]

# The faults of a round. The store is not used while Kafka acknowledges, so its faults come with an outage.
THEMES: tuple[tuple[Fault, ...], ...] = (
    (Fault.CLOCK_SET,),
    (Fault.GATEWAY_KILLED, Fault.CLOCK_SET),
    (Fault.BROKER_FROZEN,),
    (Fault.RIGHT_LOST,),
    (Fault.OTHER_CLUSTER,),
    (Fault.GATEWAY_KILLED, Fault.RIGHT_LOST, Fault.DISK_FULL),
    (Fault.BROKER_KILLED, Fault.DISK_FULL, Fault.CLOCK_SET),
    (Fault.GATEWAY_KILLED, Fault.BROKER_KILLED, Fault.CLOCK_SET),
    (Fault.GATEWAY_KILLED, Fault.BROKER_FROZEN, Fault.OTHER_CLUSTER),
    (Fault.BROKER_FROZEN, Fault.OTHER_CLUSTER, Fault.DISK_FULL),
    (Fault.BROKER_KILLED, Fault.OTHER_CLUSTER, Fault.REPLAY_CUT),
    (Fault.BROKER_FROZEN, Fault.DISK_FULL, Fault.REPLAY_CUT),
    (Fault.GATEWAY_KILLED, Fault.BROKER_KILLED, Fault.DISK_FULL),
    (Fault.GATEWAY_KILLED, Fault.BROKER_FROZEN, Fault.BROKER_KILLED, Fault.DISK_FULL, Fault.REPLAY_CUT),
    (Fault.BROKER_KILLED, Fault.PAGE_DAMAGED),
    (Fault.BROKER_KILLED, Fault.ROW_CHANGED),
    (Fault.RIGHT_LOST, Fault.GATEWAY_KILLED, Fault.ROW_CHANGED, Fault.PAGE_DAMAGED),
    (Fault.ANSWERS_LOST, Fault.DISK_FULL, Fault.CLOCK_SET),
    (Fault.ANSWERS_LOST, Fault.GATEWAY_KILLED),
)
OF_THE_BROKER = (
    Fault.BROKER_KILLED, Fault.BROKER_FROZEN, Fault.RIGHT_LOST, Fault.ANSWERS_LOST, Fault.OTHER_CLUSTER,
)  # fmt: skip
OF_THE_FILE = (Fault.ROW_CHANGED, Fault.PAGE_DAMAGED)  # the gateway is killed, and started on it
# The gateway is started in them: until a broker has acknowledged a record, nobody knows that the clock is wrong.
OF_A_START = (Fault.GATEWAY_KILLED, Fault.REPLAY_CUT, *OF_THE_FILE)
_FIRST_S = 1.0  # of load before anything happens
_DOWN_S = {
    Fault.GATEWAY_KILLED: (0.05, 1.0),
    Fault.BROKER_KILLED: (0.5, 4.0),
    Fault.BROKER_FROZEN: (0.5, 5.0),  # shorter and longer than a request's deadline
    Fault.DISK_FULL: (1.0, 4.0),
    Fault.REPLAY_CUT: (0.05, 0.5),
    Fault.RIGHT_LOST: (0.5, 4.0),
    Fault.PAGE_DAMAGED: (0.05, 1.0),
    Fault.ROW_CHANGED: (0.05, 1.0),
    Fault.ANSWERS_LOST: (3.0, 6.0),  # a run of reconcile takes its time
    Fault.OTHER_CLUSTER: (0.3, 5.0),  # from hardly a connection to an outage
    Fault.CLOCK_SET: (2.0, 4.0),
}
_WRONG_S = (1.0, 3_600.0, 86_400.0, 365 * 86_400.0)
_STARTS_S = (3.0, 6.0)  # a clock stays wrong for so long after a gateway that was killed is started


def themes(seed: int, rounds: int, fault: Fault | None = None) -> list[tuple[Fault, ...]]:
    """The faults of each round: the first has none, then each theme once, then by chance; or all those with `fault`."""
    chance = random.Random(seed)
    possible = [theme for theme in THEMES if fault is None or fault in theme]
    once = chance.sample(possible, len(possible))
    return [*([()] if fault is None else []), *once, *chance.choices(possible, k=rounds)][:rounds]


def plan(seed: int, number: int, theme: tuple[Fault, ...]) -> Plan:
    """Return the spans of the round's faults. Faults of one part do not overlap, others may."""
    chance = random.Random(f"{seed}-{number}")
    spans: list[Span] = []
    broker = [fault for fault in OF_THE_BROKER if fault in theme]
    chance.shuffle(broker)
    at = _FIRST_S
    for fault in broker:
        spans.append(_span(chance, fault, at + chance.uniform(0, 1.5)))
        at = spans[-1].end_s
    if Fault.DISK_FULL in theme:
        outage = chance.choice(spans)
        spans.append(_span(chance, Fault.DISK_FULL, chance.uniform(outage.begin_s, outage.end_s)))
    at = _FIRST_S
    for fault in OF_THE_FILE:
        if fault in theme:  # late in an outage, so that more lies in the file
            outage = spans[0]
            half_s = (outage.begin_s + outage.end_s) / 2
            spans.append(_span(chance, fault, max(at, chance.uniform(half_s, outage.end_s))))
            at = spans[-1].end_s + 0.5
    if Fault.GATEWAY_KILLED in theme:
        end = max((span.end_s for span in spans), default=_FIRST_S + 3)
        for _ in range(chance.randint(1, 3)):
            spans.append(_span(chance, Fault.GATEWAY_KILLED, chance.uniform(at, max(at + 1, end))))
            at = spans[-1].end_s + 0.5
    if Fault.CLOCK_SET in theme:
        spans += _clock_spans(chance, tuple(spans))
    spans.sort(key=lambda span: span.begin_s)
    if Fault.REPLAY_CUT in theme:
        spans += [_span(chance, Fault.REPLAY_CUT, chance.uniform(0, 0.2)) for _ in range(chance.randint(1, 3))]
    return tuple(spans)


def _clock_spans(chance: random.Random, others: Sequence[Span]) -> Iterator[Span]:
    """Yield spans of a wrong clock: one over a kill and the start after it, or over an outage, and others after it."""
    at = _FIRST_S
    around = [span for span in others if span.fault is Fault.GATEWAY_KILLED] or [*others]
    if around:
        over = chance.choice(around)
        yield _set(chance, chance.uniform(_FIRST_S, over.begin_s), over.end_s + chance.uniform(*_STARTS_S))
        at = over.end_s + _STARTS_S[1]
    for _ in range(chance.randint(1, 3)):
        begin_s = at + chance.uniform(0.3, 1.0)
        yield _set(chance, begin_s, begin_s + chance.uniform(*_DOWN_S[Fault.CLOCK_SET]))
        at = begin_s + _DOWN_S[Fault.CLOCK_SET][1]


def _set(chance: random.Random, begin_s: float, end_s: float) -> Span:
    wrong_s = chance.choice((1, -1)) * chance.choice(_WRONG_S)
    return Span(Fault.CLOCK_SET, round(begin_s, 2), round(end_s, 2), wrong_s)


def _span(chance: random.Random, fault: Fault, begin_s: float) -> Span:
    return Span(fault, round(begin_s, 2), round(begin_s + chance.uniform(*_DOWN_S[fault]), 2))
