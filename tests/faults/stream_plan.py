"""The plan of a round: random faults at random points and times, the same for the same seed."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from include.contracts.definition import Definition
from include.runtime.failpoints import RECORD_FAILPOINTS, STREAM_FAILPOINTS, TASK_FAILPOINTS, TRANSACTION_FAILPOINTS
from include.runtime.settings import AT_LEAST_ONCE
from tests.faults.stream_bulk import longest_text


class Effect(StrEnum):
    """The faults."""

    DRIVER_KILLED = "driver killed"
    PYTHON_KILLED = "driver's Python killed"
    JVM_KILLED = "driver's JVM killed"
    WORKERS_KILLED = "Python workers killed"
    WORKERS_FROZEN = "Python workers frozen"
    DAEMON_KILLED = "Python worker daemon killed"
    SECOND_DRIVER = "second driver started"
    BACKENDS_TERMINATED = "PostgreSQL's backends terminated"
    BACKEND_KILLED = "PostgreSQL's backend killed"
    POSTGRES_RESTARTED = "PostgreSQL restarted"
    POSTGRES_CRASHED = "PostgreSQL crashed"
    POSTGRES_AWAY = "PostgreSQL away"
    BROKER_FROZEN = "broker frozen"
    BROKER_KILLED = "broker killed"
    ANSWERS_LOST = "broker's answers lost"
    COMMIT_UNANSWERED = "driver killed before its commit is answered"
    LARGE_RECORDS = "large records"
    MANY_PENDING = "many pending"
    BULK_OF_TABLE_RECORDS = "bulk of table records"
    DRIVER_FROZEN = "driver frozen, another one stands by"
    JVM_FROZEN = "driver's JVM frozen"
    HOST_LOST = "driver's host lost, without a word to PostgreSQL"
    BROKEN_SECOND = "broken second driver started again and again"
    OUT_OF_MEMORY = "driver's JVM out of memory"
    TRANSACTION_HUNG = "hung transaction in the stream's topic"
    RECORD_FAILS = "record that fails"
    RECORD_KILLS = "record that ends the process"
    TOPIC_MADE_AGAIN = "stream's topic made again"
    CLOCK_SET = "driver's clock set"
    DATABASE_RESTORED = "PostgreSQL restored to a while before"
    SEGMENTS_DAMAGED = "driver killed, and its segments damaged"


@dataclass(frozen=True)
class Fault:
    """An effect at a named place of the driver, or at any time; `after_s`: that long after the one before.

    CLOCK_SET: by `wrong_s`, ahead or back.
    """

    effect: StrEnum
    place: str | None
    after_s: float = 0.0
    lasts_s: float = 0.0
    wrong_s: float = 0.0

    @property
    def name(self) -> str:
        """The fault's name, without its times."""
        return f"{self.effect} at {self.place}" if self.place else str(self.effect)

    def __str__(self) -> str:
        lasts = f", for {self.lasts_s:.1f} s" if self.lasts_s else ""
        by = f", by {self.wrong_s:+,.0f} s" if self.wrong_s else ""
        return f"{self.name} (+{self.after_s:.1f} s{lasts}{by})"


Plan = tuple[Fault, ...]

OF_A_RECORD = (Effect.RECORD_FAILS, Effect.RECORD_KILLS)
_OF_A_PLACE = (*OF_A_RECORD, Effect.COMMIT_UNANSWERED)
_JOIN_FAILPOINTS = ("join.before_send", "join.after_send", "join.before_ledger", "resolve.after_send")
_OF_WORKERS = (Effect.WORKERS_KILLED, Effect.WORKERS_FROZEN, Effect.DAEMON_KILLED)
# Each of them once before any comes again.
ONCE: tuple[tuple[Effect, str | None], ...] = (
    *((Effect.DRIVER_KILLED, place) for place in STREAM_FAILPOINTS),
    *((effect, None) for effect in Effect if effect not in _OF_A_PLACE),
    *((effect, place) for effect in OF_A_RECORD for place in RECORD_FAILPOINTS),
    *((Effect.DRIVER_FROZEN, place) for place in (*TRANSACTION_FAILPOINTS, *TASK_FAILPOINTS, *_JOIN_FAILPOINTS)),
    *((effect, place) for effect in (*_OF_WORKERS, Effect.PYTHON_KILLED) for place in TASK_FAILPOINTS),
    *((Effect.SECOND_DRIVER, place) for place in TRANSACTION_FAILPOINTS),
    (Effect.BROKER_KILLED, "transaction.before_commit"),
    (Effect.BROKER_FROZEN, "transaction.before_commit"),
    (Effect.ANSWERS_LOST, "transaction.sending"),
    (Effect.ANSWERS_LOST, "transaction.before_commit"),
    (Effect.COMMIT_UNANSWERED, "transaction.before_commit"),
    (Effect.POSTGRES_CRASHED, "transaction.after_commit"),
    (Effect.BACKENDS_TERMINATED, "serve.after_copy"),
    (Effect.BACKENDS_TERMINATED, "serve.before_commit"),
    (Effect.BACKENDS_TERMINATED, "join.before_ledger"),
    (Effect.BACKEND_KILLED, "serve.before_commit"),
    (Effect.BACKEND_KILLED, "serve.after_commit"),
    (Effect.POSTGRES_RESTARTED, "serve.before_commit"),
    (Effect.POSTGRES_RESTARTED, "join.after_send"),
    (Effect.POSTGRES_CRASHED, "serve.after_commit"),
    (Effect.POSTGRES_AWAY, "join.before_ledger"),
    (Effect.POSTGRES_AWAY, "resolve.after_send"),
    (Effect.BROKER_FROZEN, "join.before_send"),
    (Effect.JVM_KILLED, "serve.before_commit"),
    (Effect.PYTHON_KILLED, "join.before_send"),
    (Effect.SECOND_DRIVER, "serve.before_commit"),
    (Effect.SECOND_DRIVER, "join.before_send"),
    (Effect.LARGE_RECORDS, "serve.before_commit"),
    (Effect.MANY_PENDING, "join.before_ledger"),
    (Effect.BULK_OF_TABLE_RECORDS, "resolve.after_send"),
    (Effect.DRIVER_FROZEN, "serve.after_copy"),
    (Effect.DRIVER_FROZEN, "serve.before_commit"),
    (Effect.HOST_LOST, "serve.after_copy"),
    (Effect.HOST_LOST, "serve.before_commit"),
    (Effect.OUT_OF_MEMORY, "serve.before_commit"),
    (Effect.TOPIC_MADE_AGAIN, "join.planned"),
    (Effect.TOPIC_MADE_AGAIN, "join.after_send"),
    (Effect.TOPIC_MADE_AGAIN, "serve.before_commit"),
)
_LASTS_S = {
    Effect.BROKER_FROZEN: (0.5, 6.0),
    Effect.BROKER_KILLED: (0.2, 2.0),
    Effect.ANSWERS_LOST: (0.5, 6.0),
    Effect.POSTGRES_AWAY: (0.5, 4.0),
    Effect.WORKERS_KILLED: (2.0, 3.0),
    Effect.WORKERS_FROZEN: (0.5, 6.0),
    Effect.DAEMON_KILLED: (0.5, 2.0),
    Effect.TRANSACTION_HUNG: (1.0, 4.0),
    Effect.CLOCK_SET: (1.0, 4.0),
    Effect.DATABASE_RESTORED: (4.0, 12.0),
}
_WRONG_S = (120.0, 3_600.0, 86_400.0, 365 * 86_400.0)  # more than the driver tolerates
_AFTER_S = (0.3, 2.5)
_LARGE_TEXT = 1_000  # characters: shorter records would be too many


def impossible_effects(pipeline: Definition) -> dict[Effect, str]:
    """Return the effects that cannot exist for a pipeline, each with the reason."""
    length = longest_text(pipeline.stream)
    if length < _LARGE_TEXT:
        return {Effect.LARGE_RECORDS: f"the strings of {pipeline.stream.name} have {length} characters at most"}
    return {}


def plans(
    pipeline: Definition,
    seed: int,
    rounds: int,
    named: str = "",
    delivery: str = AT_LEAST_ONCE,
    is_every_round: bool = False,
) -> list[Plan]:
    """The faults of each round: the first has none, those of the others differ, and all come before any comes again.

    `named`: only those in whose names the regular expression finds something. `is_every_round`: each of them in every
    round but the first, in any order.
    """
    absent = TRANSACTION_FAILPOINTS if delivery == AT_LEAST_ONCE else ()
    possible = [each for each in ONCE if each[0] not in impossible_effects(pipeline) and each[1] not in absent]
    chance = random.Random(seed)
    hard = rounds - 1
    if hard < 1:
        return [()]
    once = [(effect, place) for effect, place in possible if re.search(named, Fault(effect, place).name)]
    if not once:
        return []
    if is_every_round:
        return [(), *(_plan(chance, chance.sample(once, len(once))) for _ in range(hard))]
    wanted = chance.sample(once, len(once))
    wanted.sort(key=lambda each: each[0] is not Effect.TOPIC_MADE_AGAIN)  # while there is little to send again
    wanted += chance.choices(once, k=max(0, hard - len(wanted)))
    return [(), *(_plan(chance, wanted[number::hard]) for number in range(hard))]


def _plan(chance: random.Random, wanted: Sequence[tuple[Effect, str | None]]) -> Plan:
    return tuple(fault(chance, effect, place) for effect, place in wanted)


def fault(chance: random.Random, effect: Effect, place: str | None) -> Fault:
    """The fault with its times."""
    lasts = chance.uniform(*_LASTS_S[effect]) if effect in _LASTS_S else 0.0
    wrong_s = chance.choice((1, -1)) * chance.choice(_WRONG_S) if effect is Effect.CLOCK_SET else 0.0
    return Fault(effect, place, round(chance.uniform(*_AFTER_S), 2), round(lasts, 2), wrong_s)
