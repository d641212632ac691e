"""The table of failure kinds and the actions for them. `pipeline gateway failures` prints it.

Every error that a producer can meet has a row; another one, of consumers, transactions or administration, counts as an
outage. The library counts DUPLICATE_SEQUENCE_NUMBER as an acknowledgement, and retries transient errors until
`message.timeout.ms`; the failure is `_MSG_TIMED_OUT` then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from include.gateway.ports import Failure


class Action(StrEnum):
    """RESUME: continue with the same producer. RESTART: create a new producer. STOP: shut down, exit non-zero."""

    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Rule:
    """Meaning of one kind of failure.

    keep: the record goes to the fallback store. False if Kafka refuses the record for good because of its content: the
    sender gets `status` then, and a replayed record is set aside. The producer has sent such a record alone, because an
    error of a batch is about any of its records.
    ambiguous: the record may be in Kafka all the same. False only for records that were never sent, because the client
    does not report whether an attempt before the last one succeeded.
    outage: the broker or the partition fails for every record, so the failure counts against the circuit.
    of_topic: the outage concerns all partitions of the record's topic, and no other topic.
    """

    kind: str
    action: Action
    keep: bool
    ambiguous: bool
    outage: bool
    status: int
    why: str
    of_topic: bool = False


# Our own kinds. The producer adapter reports the first three, the gateway itself the others.
DEADLINE = "gateway.deadline"
CLOSED = "gateway.closed"
RECORD_TOO_LARGE = "gateway.record_too_large"
CIRCUIT_OPEN = "gateway.circuit_open"
PARTITION_OUT = "gateway.partition_out"
KEY_WAITING = "gateway.key_waiting"
STORE_FULL = "gateway.store_full"
STORE_UNAVAILABLE = "gateway.store_unavailable"
DATABASE_UNAVAILABLE = "gateway.database_unavailable"
DATABASE_CLOCK_AHEAD = "gateway.database_clock_ahead"
FOREIGN_CLUSTER = "gateway.foreign_cluster"
CLIENT_STUCK = "gateway.client_stuck"

_KEPT = 201

_Rules = Iterator[Rule]


def _outage(why: str, *kinds: str, of_topic: bool = False) -> _Rules:
    return (Rule(kind, Action.RESUME, True, True, True, _KEPT, why, of_topic) for kind in kinds)


def _kept(why: str, *kinds: str, ambiguous: bool = True) -> _Rules:
    return (Rule(kind, Action.RESUME, True, ambiguous, False, _KEPT, why) for kind in kinds)


def _refused(status: int, why: str, *kinds: str) -> _Rules:
    return (Rule(kind, Action.RESUME, False, False, False, status, why) for kind in kinds)


def _restart(why: str, *kinds: str) -> _Rules:
    return (Rule(kind, Action.RESTART, True, True, False, _KEPT, why) for kind in kinds)


def _stop(why: str, *kinds: str) -> _Rules:
    return (Rule(kind, Action.STOP, True, True, True, _KEPT, why) for kind in kinds)


_GROUPS: tuple[_Rules, ...] = (
    # no answer in time: the record may or may not be in the log
    _outage("no acknowledgement within the request's deadline", DEADLINE),
    _outage("not acknowledged within message.timeout.ms", "_MSG_TIMED_OUT"),
    _outage("the broker did not answer", "_TIMED_OUT"),
    _outage("timed out in the client's queue", "_TIMED_OUT_QUEUE"),
    _outage("the broker timed out waiting for its replicas", "REQUEST_TIMED_OUT"),
    _outage("the connection broke", "_TRANSPORT", "_FAIL", "NETWORK_EXCEPTION"),
    _outage("the broker's answer cannot be read", "_BAD_MSG", "_BAD_COMPRESSION", "_UNDERFLOW", "_PARTIAL"),
    # the broker is down or unable; an attempt before this answer may have been appended all the same
    _outage("no broker can be reached", "_ALL_BROKERS_DOWN"),
    _outage("no broker's host name resolves", "_RESOLVE"),
    _outage("the broker is not available", "BROKER_NOT_AVAILABLE", "REBOOTSTRAP_REQUIRED", "_UNKNOWN_BROKER"),
    _outage("the broker failed and does not say why", "UNKNOWN"),
    _outage("the broker's disk failed", "KAFKA_STORAGE_ERROR"),
    _outage("the TLS handshake failed", "_SSL"),
    _outage(
        "the broker does not accept our credentials",
        *("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE"),
    ),
    _outage("the partition has no leader", "LEADER_NOT_AVAILABLE"),
    _outage(
        "leadership moved and was not found again in time",
        *("NOT_LEADER_FOR_PARTITION", "REPLICA_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"),
    ),
    _outage("too few in-sync replicas", "_ISR_INSUFF", "NOT_ENOUGH_REPLICAS"),
    _outage("appended, but on too few replicas", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
    _outage(
        "another Kafka cluster answers, or none says which it is: its acknowledgement does not count", FOREIGN_CLUSTER
    ),
    # every record of the topic fails until its ACLs or settings are corrected
    _outage("the gateway may not write to this topic", "TOPIC_AUTHORIZATION_FAILED", of_topic=True),
    _outage("the broker's policy refuses records of the topic", "POLICY_VIOLATION", of_topic=True),
    _outage("the topic has the times of producers, and the gateway's is refused", "INVALID_TIMESTAMP", of_topic=True),
    _outage("the broker refuses the topic's name", "TOPIC_EXCEPTION", of_topic=True),
    # refers to a batch, not to a record: the topic's limits were made smaller than a batch
    _outage(
        "the topic takes less than its contract says", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", of_topic=True
    ),
    # one record or one topic; the others go on
    _kept("the circuit is open: kept without sending it to Kafka", CIRCUIT_OPEN, ambiguous=False),
    _kept("the record's partition is unavailable: kept without sending it to Kafka", PARTITION_OUT, ambiguous=False),
    _kept("an earlier record of the same key waits: kept behind it, for the order", KEY_WAITING, ambiguous=False),
    _kept("the producer is closed", CLOSED),
    _kept("queued when the circuit opened or the producer ended", "_PURGE_QUEUE"),
    _kept("in flight when the circuit opened or the producer ended", "_PURGE_INFLIGHT"),
    _kept("the producer ended", "_DESTROY", "_DESTROY_BROKER"),
    _kept("the client did not finish", "_INTR", "_RETRY", "_IN_PROGRESS", "_PREV_IN_PROGRESS", "_WAIT_CACHE"),
    _kept("the client's metadata changed in the meantime", "_OUTDATED", "_NODE_UPDATE", "_CONFLICT", "_INCONSISTENT"),
    _kept("the producer's own buffer is full", "_QUEUE_FULL", ambiguous=False),
    _kept("the broker throttles us", "THROTTLING_QUOTA_EXCEEDED"),
    _kept("the topic does not exist yet", "_UNKNOWN_TOPIC", ambiguous=False),
    _kept("the topic does not exist yet", "UNKNOWN_TOPIC_OR_PART"),
    _kept("the topic was recreated", "UNKNOWN_TOPIC_ID", "INCONSISTENT_TOPIC_ID"),
    _kept("the partition is not known yet", "_UNKNOWN_PARTITION", ambiguous=False),
    _kept("the record was corrupted in transit", "INVALID_MSG"),
    _kept("another record of its batch is invalid", "_INVALID_DIFFERENT_RECORD"),
    _kept("the broker has it already", "DUPLICATE_SEQUENCE_NUMBER"),
    _kept("the topic's format or compression must be changed", "UNSUPPORTED_FOR_MESSAGE_FORMAT"),
    _kept("the topic's format or compression must be changed", "UNSUPPORTED_COMPRESSION_TYPE"),
    # Kafka will never accept this record, which was sent alone; no change of settings would help
    _refused(413, "larger than Kafka takes", RECORD_TOO_LARGE, "INVALID_MSG_SIZE"),
    _refused(422, "the broker refuses the record", "INVALID_RECORD"),
    _refused(422, "the client library refuses the record", "_INVALID_ARG", "_INVALID_TYPE"),
    _refused(422, "the client library refuses the record", "_KEY_SERIALIZATION", "_VALUE_SERIALIZATION"),
    # the producer's state is lost
    _restart("a fatal error of the idempotent producer", "_FATAL"),
    _restart("another producer took over", "_FENCED", "PRODUCER_FENCED"),
    _restart("the producer's epoch is out of date", "INVALID_PRODUCER_EPOCH"),
    _restart("the broker forgot the producer", "INVALID_PRODUCER_ID_MAPPING", "UNKNOWN_PRODUCER_ID"),
    _restart("the producer and the broker disagree about what was sent", "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    _restart("a gap in the sequence", "_GAPLESS_GUARANTEE"),
    _restart("the producer is in a wrong state", "_STATE", "_READ_ONLY"),
    _restart("the client library lacks a system resource", "_CRIT_SYS_RESOURCE", "_FS"),
    _restart("the gateway may not produce idempotently", "CLUSTER_AUTHORIZATION_FAILED"),
    _restart("probes fail for long, or a call of the client does not return", CLIENT_STUCK),
    # a restart does not help: the broker or its settings must be changed
    _stop("the broker is too old", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"),
    _stop("the broker does not take acks=all", "INVALID_REQUIRED_ACKS"),
    # our own kinds: nothing was kept, the sender gets 503
    _refused(503, "the fallback store is full", STORE_FULL),
    _refused(503, "the fallback store cannot write", STORE_UNAVAILABLE),
    _refused(503, "the system of record cannot be reached", DATABASE_UNAVAILABLE),
    _refused(
        503,
        "the clock of the system of record, or the last version of the row, is ahead of the gateway's clock",
        DATABASE_CLOCK_AHEAD,
    ),
)

_ROWS = tuple(rule for group in _GROUPS for rule in group)

TABLE: Mapping[str, Rule] = {rule.kind: rule for rule in _ROWS}


def rule_for(failure: Failure) -> Rule:
    """Return the rule of a failure.

    A fatal failure restarts the producer, unless its own row stops the gateway. An unknown kind counts as an outage.
    """
    rule = TABLE.get(failure.kind)
    if failure.fatal and (rule is None or rule.action is Action.RESUME):
        return TABLE["_FATAL"]
    return rule or next(_outage("a kind that is not in the table: kept, and treated as an outage", failure.kind))


# Errors of the client, not of a record, that require an action. librdkafka recovers from the others by itself, such as
# a broken connection to one of several brokers.
_OF_THE_CLIENT = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_FATAL", "_CRIT_SYS_RESOURCE", CLIENT_STUCK})


def client_rule_for(failure: Failure) -> Rule | None:
    """Return the rule of a failure that belongs to no record; None if it requires no action."""
    return rule_for(failure) if failure.fatal or failure.kind in _OF_THE_CLIENT else None
