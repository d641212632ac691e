"""The speed layer's proof on three brokers: `python -m tests.faults.stream_on_brokers --seed 7`.

The driver of `tests.faults.stream`, under the same load and with the same verdict, sends to topics with three replicas.
While it pauses at a place of a transaction, the broker of the transaction's coordinator, of the group's coordinator or
of a leader of the output is killed or frozen, and the driver goes on without it. The coordinators and the leader are
moved, and all brokers are restarted one after the other. The first round has no faults. `--delivery at_least_once` has
the same faults at the places where its records are sent: there the last two kinds make copies. `--kafka` names an older
version of the brokers, whose jars it fetches. Exit codes are those of `tests/faults/frame.py`; `--only N` runs a single
round.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from include.contracts.definition import SITE_NAME
from include.kafka.access import delivery_name
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.faults import frame, stream_parts
from tests.faults.stream import run_rounds
from tests.faults.stream_plan import Fault, Plan
from tests.servers import wait_until
from tests.support.broker import PARTITIONS
from tests.support.older_brokers import VERSIONS, ensure_jars
from tests.support.three_brokers import COUNT, ThreeBrokers, three_brokers

_HEALTHY_S = 180.0
_ANSWER_S = 60.0
_AFTER_S = (0.5, 3.0)
_DOWN_S = (2.0, 14.0)  # shorter and longer than the session of a broker
_TRANSACTIONS, _GROUPS = "__transaction_state", "__consumer_offsets"
_SENT = "join.after_send"  # with at-least-once delivery: the records are in the topic, and the ledger is not advanced


class BrokerEffect(StrEnum):
    """The faults of brokers. Whatever was killed runs again afterwards."""

    COORDINATOR_KILLED = "transaction coordinator killed"
    COORDINATOR_FROZEN = "transaction coordinator frozen"
    GROUP_COORDINATOR_KILLED = "group coordinator killed"
    LEADER_KILLED = "leader of the output killed"
    LEADERS_MOVED = "coordinators and leader moved"
    ALL_RESTARTED = "all brokers restarted one after the other"
    COORDINATOR_AND_DRIVER_KILLED = "transaction coordinator and driver killed"


KINDS: tuple[tuple[BrokerEffect, str | None], ...] = (
    (BrokerEffect.COORDINATOR_KILLED, "transaction.sending"),
    (BrokerEffect.COORDINATOR_KILLED, "transaction.before_commit"),
    (BrokerEffect.COORDINATOR_FROZEN, "transaction.before_commit"),
    (BrokerEffect.GROUP_COORDINATOR_KILLED, "transaction.sending"),
    (BrokerEffect.GROUP_COORDINATOR_KILLED, "transaction.before_commit"),
    (BrokerEffect.LEADER_KILLED, "transaction.sending"),
    (BrokerEffect.LEADER_KILLED, "transaction.before_commit"),
    (BrokerEffect.LEADERS_MOVED, "transaction.sending"),
    (BrokerEffect.LEADERS_MOVED, "transaction.before_commit"),
    (BrokerEffect.ALL_RESTARTED, None),
    (BrokerEffect.COORDINATOR_AND_DRIVER_KILLED, "transaction.before_commit"),
    (BrokerEffect.COORDINATOR_AND_DRIVER_KILLED, "transaction.after_commit"),
)


@dataclass
class Parts(stream_parts.Parts):
    """The parts of the speed layer's proof, with three brokers."""

    brokers: ThreeBrokers = field(kw_only=True)

    def suffer(self, plan: Plan) -> None:
        """Apply the faults; on return the driver is healthy and every replica is in sync."""
        for fault in plan:
            time.sleep(fault.after_s)
            if fault.place is not None:
                self.driver.arm_pause(fault.place)
            if fault.place is None or self.driver.is_paused_at(fault.place):
                try:
                    self._let_happen(fault)
                finally:
                    self._go_on(fault)
                self.felt.add(fault.name)
            self.driver.wait_until_ended()
            self.brokers.wait_until_in_sync()
            wait_until(self.driver.is_healthy, _HEALTHY_S, f"the driver is healthy, see {self.driver.log}")

    def _let_happen(self, fault: Fault) -> None:
        brokers, output = self.brokers, (self.settings.pipeline.output.name, 0)
        transactions, group = self._mine(_TRANSACTIONS), self._mine(_GROUPS)
        coordinator = brokers.leader(*transactions)
        match fault.effect:
            case BrokerEffect.COORDINATOR_KILLED:
                self._without(coordinator, fault)
            case BrokerEffect.GROUP_COORDINATOR_KILLED:
                self._without(brokers.leader(*group), fault)
            case BrokerEffect.LEADER_KILLED:
                self._without(brokers.leader(*output), fault)
            case BrokerEffect.COORDINATOR_AND_DRIVER_KILLED:
                self.driver.kill()
                self._without(coordinator, fault)
            case BrokerEffect.COORDINATOR_FROZEN:
                brokers.freeze(coordinator)
                try:
                    self._go_on(fault)
                    time.sleep(fault.lasts_s)
                finally:
                    brokers.thaw(coordinator)
            case BrokerEffect.LEADERS_MOVED:
                brokers.move_leaders(transactions, group, output)
            case BrokerEffect.ALL_RESTARTED:
                for number in range(COUNT):
                    brokers.stop(number)
                    brokers.start(number)
                    brokers.wait_until_in_sync()

    def _without(self, number: int, fault: Fault) -> None:
        """Kill a broker, let the driver go on without it, and start the broker again."""
        self.brokers.kill(number)
        try:
            self._go_on(fault)
            time.sleep(fault.lasts_s)
        finally:
            self.brokers.start(number)

    def _go_on(self, fault: Fault) -> None:
        if fault.place is not None:
            self.driver.go_on(fault.place)

    def _mine(self, topic: str) -> tuple[str, int]:
        """Return the partition of an internal topic that has the driver's transactional id or group: Java's hash."""
        code = 0
        for letter in delivery_name(self.settings.pipeline):
            code = (31 * code + ord(letter)) & 0xFFFFFFFF
        return topic, (code & 0x7FFFFFFF) % self.brokers.partitions(topic)


@contextmanager
def parts_in(
    folder: Path, pipeline: str = SITE_NAME, delivery: str = EXACTLY_ONCE, jars: Path | None = None
) -> Iterator[Parts]:
    """Yield the parts, running and healthy, with their logs in the folder; stop them at the end.

    `jars` decide the version of the brokers.
    """
    with three_brokers(folder / "brokers", jars) as brokers:
        _make_coordinators(brokers)
        more = {
            "KAFKA_BOOTSTRAP_SERVERS": brokers.bootstrap_servers,
            "KAFKA_PARTITIONS": f"{PARTITIONS}",
            "KAFKA_REPLICATION_FACTOR": f"{COUNT}",
            "KAFKA_MIN_INSYNC_REPLICAS": "2",
            "STREAM_DELIVERY": delivery,
        }
        with stream_parts.parts_in(folder, pipeline, more=more, cluster=brokers.servers[0]) as parts:
            brokers.wait_until_in_sync()
            yield Parts(**vars(parts), brokers=brokers)


def _make_coordinators(brokers: ThreeBrokers) -> None:
    """Make the topics of the coordinators: with at-least-once delivery the driver does not, and has the same faults."""
    servers = {"bootstrap.servers": brokers.bootstrap_servers, "log_level": 2}  # a new coordinator is loading first
    Producer({**servers, "transactional.id": "none"}).init_transactions(_ANSWER_S)
    # The coordinator may not yet lead its partition; the topic is there.
    with closing(Consumer({**servers, "group.id": "none"})) as consumer, suppress(KafkaException):
        consumer.committed([TopicPartition(_GROUPS, 0)], _ANSWER_S)


def plans(seed: int, rounds: int, delivery: str = EXACTLY_ONCE) -> list[Plan]:
    """Return the faults of each round, one a round; the first has none, and all come before any comes again."""
    chance = random.Random(seed)
    kinds = [*chance.sample(KINDS, len(KINDS)), *chance.choices(KINDS, k=rounds)][: rounds - 1]
    return [(), *((_fault(chance, effect, place, delivery),) for effect, place in kinds)]


def _fault(chance: random.Random, effect: BrokerEffect, place: str | None, delivery: str) -> Fault:
    at = _SENT if place and delivery == AT_LEAST_ONCE else place
    return Fault(effect, at, round(chance.uniform(*_AFTER_S), 2), round(chance.uniform(*_DOWN_S), 2))


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Fails the brokers under the stream, and looks for what was lost.", one_round=True)
    parser.set_defaults(rounds=1 + len(KINDS))
    parser.add_argument("--delivery", choices=(AT_LEAST_ONCE, EXACTLY_ONCE), default=EXACTLY_ONCE)
    parser.add_argument("--kafka", choices=VERSIONS, help="brokers of an older version (default: the stack's)")
    return frame.prove("stream_on_brokers", parsed := frame.parsed(parser), partial(_prove, parsed))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    planned = plans(arguments.seed, arguments.rounds, arguments.delivery)
    jars = ensure_jars(arguments.kafka) if arguments.kafka else None
    with parts_in(folder, arguments.pipeline, arguments.delivery, jars) as parts:
        _, is_kept, missing = run_rounds(parts, arguments, planned)
    if missing:
        print(f"the driver never came to these places, so nothing was proved there: {', '.join(sorted(missing))}")
    return is_kept and not missing


if __name__ == "__main__":
    sys.exit(main())
