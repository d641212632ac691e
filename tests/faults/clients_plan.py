"""The kinds of hostile clients of each round: none, each alone, random combinations, then all."""

import random
from enum import StrEnum


class Kind(StrEnum):
    """The behaviour that a client repeats."""

    SILENT = "silent"
    SLOW = "slow"
    HALF_CLOSED = "half-closed"
    PIPELINING = "pipelining"
    NEVER_READING = "never-reading"
    SMALL_CHUNKS = "small-chunks"
    UNWANTED_BODIES = "unwanted-bodies"
    CONTAINERS = "containers"
    LONG_HEADS = "long-heads"


def plan(seed: int, rounds: int) -> list[tuple[Kind, ...]]:
    """The kinds of each round, the same for the same seed."""
    chance, kinds = random.Random(seed), list(Kind)
    alone = [(kind,) for kind in chance.sample(kinds, len(kinds))]
    some = [tuple(chance.sample(kinds, chance.randint(2, len(kinds) - 1))) for _ in range(rounds)]
    return [(), tuple(kinds), *alone, *some][:rounds]
