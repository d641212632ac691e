"""The least rights of each part in Kafka, errors that name a missing one with its command, and the clients' log.

librdkafka's log becomes entries of `logging`; by itself it writes lines of its own form to standard error.
"""

import logging
import shlex
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True)
class Right:
    """Operations on topics that one part needs. Read and Write include Describe."""

    part: Part
    operations: tuple[str, ...]
    topics: tuple[str, ...]


class KafkaAccessDenied(ConfigurationError):
    """Kafka denies an operation to this client."""


def rights(pipeline: Definition) -> list[Right]:
    """Return the least rights of the parts: `topics` creates the topics, `integrity` is the Integrity page.

    `batch` also writes: reconcile_sources sends missing events, and forget_member tombstones.
    """
    raw = (pipeline.table.name, pipeline.stream.name)
    all_topics = (*raw, pipeline.output.name)
    return [
        Right("gateway", ("Write", "DescribeConfigs"), raw),
        Right("stream", ("Read",), all_topics),
        Right("stream", ("Write",), (pipeline.output.name,)),
        Right("batch", ("Read", "Write", "DescribeConfigs"), all_topics),
        Right("integrity", ("Read",), all_topics),
        Right("topics", ("Create", "Describe", "DescribeConfigs"), all_topics),
    ]


def acl_commands(kafka: KafkaConnection, pipeline: Definition, principals: Mapping[Part, str]) -> Iterator[str]:
    """Yield the commands that grant the rights to each part's principal, such as `User:gateway`."""
    for right in rights(pipeline):
        yield _command(kafka, principals[right.part], right.operations, right.topics)


@contextmanager
def broker_errors(client: AdminClient, kafka: KafkaConnection, operation: str, topic: str = "") -> Iterator[None]:
    """Raise `broker_error` for an error of the client, and log what librdkafka logged for it so far."""
    try:
        yield
    except KafkaException as exc:
        raise broker_error(exc, kafka, operation, topic) from exc
    finally:
        client.poll(0)


def broker_error(
    exc: KafkaException, kafka: KafkaConnection, operation: str, topic: str = "", **where: object
) -> PipelineError:
    """Return the pipeline's error for one of Kafka's clients.

    It is KafkaAccessDenied if the client may not carry out the operation, such as `Read`, and names the command that
    grants it; otherwise BrokerUnavailable.
    """
    if exc.args[0].code() not in _DENIED:
        of_topic = {"topic": topic, **where} if topic else where
        return BrokerUnavailable("", bootstrap_servers=kafka.bootstrap_servers, **of_topic, reason=str(exc))
    command = _command(kafka, kafka.principal, (operation,), (topic or "*",))
    return KafkaAccessDenied(
        f"Kafka denies {operation} on topic {topic or '*'} to {kafka.principal}; grant it: {command}"
    )


def _command(kafka: KafkaConnection, principal: str, operations: tuple[str, ...], topics: tuple[str, ...]) -> str:
    options = [("--operation", each) for each in operations] + [("--topic", each) for each in topics]
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
