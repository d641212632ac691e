"""The plan of a round of the batch layer: random faults at its steps, the same for the same seed."""

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from include.runtime.failpoints import ARCHIVE_FAILPOINTS, POINT_FAILPOINTS, REBUILD_FAILPOINTS
from tests.faults.cluster_faults import ClusterEffect


class Step(StrEnum):
    """A step that a night or a person runs for a day."""

    ARCHIVE = "archive"
    REBUILD = "rebuild"
    PUBLISH = "publish"
    UNDO = "undo"
    REDO = "redo"
    CHANGE = "change"


class Effect(StrEnum):
    """A fault during a step. The step is run again afterwards, as a retry would.

    A file of the archive is missing or truncated during the step, and back afterwards. A night that is missed does not
    archive, and the next one must take its day. The stream's topic is made again when the day is published: its records
    change then, a build of what is left is refused, and everything is sent again. A wrong clock is that of the step's
    Python process; its JVM has the machine's time.
    """

    KILLED = "killed"
    JVM_KILLED = "JVM killed"
    TWIN = "started twice at once"
    BACKENDS_TERMINATED = "PostgreSQL's backends terminated"
    POSTGRES_RESTARTED = "PostgreSQL restarted"
    POSTGRES_CRASHED = "PostgreSQL crashed"
    BROKER_KILLED = "broker killed"
    LOG_CUT_SHORT = "log cut short"
    FILE_MISSING = "archive file missing"
    FILE_TRUNCATED = "archive file truncated"
    NIGHT_MISSED = "night missed"
    TOPIC_MADE_AGAIN = "stream's topic made again"
    CLOCK_AHEAD = "clock a day ahead"
    CLOCK_BEHIND = "clock a day behind"


@dataclass(frozen=True)
class Fault:
    """An effect at a failpoint of the step's process, or so many seconds after its start."""

    step: Step
    effect: Effect | ClusterEffect
    place: str | None
    after_s: float = 0.0

    def __str__(self) -> str:
        where = f"at {self.place}" if self.place else f"after {self.after_s:.1f} s"
        return f"{self.step}: {self.effect} {where}"

    @property
    def name(self) -> str:
        """The fault's name, without its time."""
        return f"{self.step}: {self.effect}" + (f" at {self.place}" if self.place else "")


Plan = tuple[Fault, ...]
_Kind = tuple[Step, Effect, str | None]

# The longest a step takes before it is over, seconds: a fault without a place comes at some time of it.
_LASTS_S = {Step.ARCHIVE: 8.0, Step.REBUILD: 9.0, Step.PUBLISH: 1.5, Step.UNDO: 1.5, Step.REDO: 1.5,
            Step.CHANGE: 1.5}  # fmt: skip

CLOCKS_S: Mapping[Effect, float] = {Effect.CLOCK_AHEAD: 86_400.0, Effect.CLOCK_BEHIND: -86_400.0}

# Each of them once before any comes again, the dear ones (a Spark job is run again) spread over the rounds.
DEAR: tuple[_Kind, ...] = (
    *((Step.REBUILD, Effect.KILLED, place) for place in REBUILD_FAILPOINTS),
    (Step.REBUILD, Effect.BACKENDS_TERMINATED, "rebuild.before_finish"),
    (Step.REBUILD, Effect.POSTGRES_RESTARTED, "rebuild.after_begin"),
    *((Step.ARCHIVE, Effect.KILLED, place) for place in ARCHIVE_FAILPOINTS),
    (Step.ARCHIVE, Effect.BACKENDS_TERMINATED, "archive.before_commit"),
    (Step.REBUILD, Effect.KILLED, None),
    (Step.REBUILD, Effect.JVM_KILLED, None),
    (Step.REBUILD, Effect.TWIN, None),
    (Step.REBUILD, Effect.POSTGRES_CRASHED, None),
    (Step.REBUILD, Effect.BROKER_KILLED, None),
    (Step.REBUILD, Effect.LOG_CUT_SHORT, "rebuild.after_begin"),
    (Step.REBUILD, Effect.FILE_MISSING, None),
    (Step.ARCHIVE, Effect.TWIN, None),
    (Step.ARCHIVE, Effect.KILLED, None),
)
CHEAP: tuple[_Kind, ...] = (
    *((step, Effect.KILLED, place) for step in (Step.PUBLISH, Step.UNDO, Step.REDO) for place in POINT_FAILPOINTS),
    *((step, Effect.TWIN, None) for step in (Step.PUBLISH, Step.UNDO, Step.REDO)),
    (Step.PUBLISH, Effect.BACKENDS_TERMINATED, "point.before_commit"),
    (Step.PUBLISH, Effect.POSTGRES_RESTARTED, "point.before_commit"),
    (Step.UNDO, Effect.POSTGRES_CRASHED, "point.before_commit"),
    (Step.PUBLISH, Effect.KILLED, None),
    (Step.ARCHIVE, Effect.FILE_TRUNCATED, None),
    (Step.ARCHIVE, Effect.NIGHT_MISSED, None),
    *((step, effect, None) for step in (Step.ARCHIVE, Step.REBUILD, Step.PUBLISH) for effect in CLOCKS_S),
)


# In the last round: the archive does not have what the former topic had, so nothing that needs it can come later.
LAST: tuple[_Kind, ...] = ((Step.CHANGE, Effect.TOPIC_MADE_AGAIN, None),)


def plans(seed: int, rounds: int, named: str = "") -> Iterator[Plan]:
    """The faults of each round, in the order of the steps, one a step at most; the first round has none.

    `named`: only those in whose names the text is.
    """
    chance = random.Random(seed)
    dear, cheap, last = (
        _Pool(chance, [kind for kind in kinds if named in Fault(*kind).name]) for kinds in (DEAR, CHEAP, LAST)
    )
    order = list(Step)
    yield ()
    for number in range(1, rounds):
        by_step: dict[Step, _Kind] = {}
        pools = (dear, cheap, cheap, last) if named or number == rounds - 1 else (dear, cheap, cheap)
        for pool in pools:
            kind = pool.draw(by_step.keys())
            if kind is not None:
                by_step[kind[0]] = kind
        yield tuple(
            Fault(*by_step[step], after_s=chance.uniform(0.1, _LASTS_S[step]))
            for step in sorted(by_step, key=order.index)
        )


class _Pool:
    """Draws each kind once before any of them again."""

    def __init__(self, chance: random.Random, kinds: Sequence[_Kind]) -> None:
        self._chance, self._kinds = chance, kinds
        self._left: list[_Kind] = []

    def draw(self, taken: Set[Step]) -> _Kind | None:
        """Return a kind; None if all of them have one of these steps."""
        fitting = [kind for kind in self._left if kind[0] not in taken]
        if not fitting and len(self._left) <= len(self._kinds):
            more = self._chance.sample(self._kinds, len(self._kinds))
            fitting = [kind for kind in more if kind[0] not in taken]
            self._left += more
        if not fitting:
            return None
        self._left.remove(fitting[0])
        return fitting[0]
