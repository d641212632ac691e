"""The least rights of each part in Kafka, errors that name a missing one with its command, and the clients' log.

librdkafka's log becomes entries of `logging`; by itself it writes lines of its own form to standard error.
"""

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from include.contracts.definition import Definition
from include.contracts.errors import BrokerUnavailable, ConfigurationError, PipelineError
from include.runtime.kafka_connection import KafkaConnection

Part = Literal["gateway", "stream", "batch", "integrity", "topics"]
_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_OF_DELIVERY = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("Write", "--transactional-id"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("Read", "--group"),
}


@dataclass(frozen=True)
class Right:
    """Operations on topics that one part needs, or on what `option` of kafka-acls names. They include Describe."""

    part: Part
    operations: tuple[str, ...]
    names: tuple[str, ...]
    option: str = "--topic"


class KafkaAccessDenied(ConfigurationError):
    """Kafka denies an operation to this client."""


def delivery_name(pipeline: Definition) -> str:
    """Return the name of the join's consumer group and of its transactional id, for exactly-once delivery."""
    return f"{pipeline.name}.join"


def rights(pipeline: Definition, is_exactly_once: bool = False) -> list[Right]:
    """Return the least rights of the parts: `topics` creates the topics, `integrity` is the Integrity page.

    `batch` also writes: reconcile_sources sends missing events, and forget_member tombstones.
    """
    delivery = (delivery_name(pipeline),) if is_exactly_once else ()
    raw = (pipeline.table.name, pipeline.stream.name)
    all_topics = (*raw, pipeline.output.name)
    return [
        Right("gateway", ("Write", "DescribeConfigs"), raw),
        Right("stream", ("Read",), all_topics),
        Right("stream", ("Write",), (pipeline.output.name,)),
        Right("batch", ("Read", "Write", "DescribeConfigs"), all_topics),
        Right("integrity", ("Read",), all_topics),
        Right("topics", ("Create", "Describe", "DescribeConfigs"), all_topics),
        *(Right("stream", (operation,), delivery, option) for operation, option in _OF_DELIVERY.values() if delivery),
    ]


def acl_commands(
    kafka: KafkaConnection, pipeline: Definition, principals: Mapping[Part, str], is_exactly_once: bool = False
) -> Iterator[str]:
    """Yield the commands that grant the rights to each part's principal, such as `User:gateway`."""
    for right in rights(pipeline, is_exactly_once):
        yield _command(kafka, principals[right.part], right.operations, right.names, right.option)


@contextmanager
def broker_errors(
    client: AdminClient, kafka: KafkaConnection, operation: str, topic: str = "", delivery: str = ""
) -> Iterator[None]:
    """Raise `broker_error` for an error of the client, and log what librdkafka logged for it so far."""
    try:
        yield
    except KafkaException as exc:
        raise broker_error(exc, kafka, operation, topic, delivery) from exc
    finally:
        client.poll(0)


def broker_error(
    exc: KafkaException, kafka: KafkaConnection, operation: str, topic: str = "", delivery: str = "", **where: object
) -> PipelineError:
    """Return the pipeline's error for one of Kafka's clients.

    It is KafkaAccessDenied if the client may not carry out the operation, such as `Read`, and names the command that
    grants it; ConfigurationError if the client cannot be made; otherwise BrokerUnavailable. `delivery` is the
    `delivery_name`, for errors of transactions.
    """
    code = exc.args[0].code()
    if code in _OF_DELIVERY and delivery:
        operation, option = _OF_DELIVERY[code]
        command = _command(kafka, kafka.principal, (operation,), (delivery,), option)
        return KafkaAccessDenied(
            f"Kafka denies {operation} on {option.removeprefix('--')} {delivery} to {kafka.principal}; "
            f"grant it: {command}"
        )
    if code == KafkaError._INVALID_ARG:
        return ConfigurationError(
            f"{exc.args[0].str()}: correct the setting, or the file that it names on this machine"
        )
    if code not in _DENIED:
        of_topic = {"topic": topic, **where} if topic else where
        return BrokerUnavailable("", bootstrap_servers=kafka.bootstrap_servers, **of_topic, reason=str(exc))
    command = _command(kafka, kafka.principal, (operation,), (topic or "*",))
    return KafkaAccessDenied(
        f"Kafka denies {operation} on topic {topic or '*'} to {kafka.principal}; grant it: {command}"
    )


def _command(
    kafka: KafkaConnection, principal: str, operations: Sequence[str], names: Sequence[str], option: str = "--topic"
) -> str:
    options = [("--operation", each) for each in operations] + [(option, each) for each in names]
    words = ["kafka-acls.sh", "--bootstrap-server", kafka.bootstrap_servers, "--add", "--allow-principal", principal]
    return shlex.join([*words, *(word for option in options for word in option)])


client_log = logging.getLogger("include.kafka.librdkafka")


def client_settings(kafka: KafkaConnection) -> dict[str, object]:
    """Return the settings of a client whose log goes to `client_log`. Its calls of `poll` or `consume` pass it on."""
    return {**kafka.librdkafka(), "logger": client_log}


class _Seldom(logging.Filter):
    """Passes one line per facility and interval: an unreachable broker causes twenty lines per second."""

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        facility = record.getMessage().partition(" ")[0]
        if record.created < self._next.get(facility, 0.0):
            return False
        self._next[facility] = record.created + self._interval_s
        return True


client_log.addFilter(_Seldom(interval_s=30))
