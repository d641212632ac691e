"""What to do about each kind of failure, as a table of data: `python -m include.gateway.supervision` prints it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from include.gateway.ports import Failure


class Action(StrEnum):
    """RESUME: this event is settled, go on. RESTART: a new producer. STOP: drain, close, exit non-zero."""

    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one kind of failure means.

    keep: the record goes to the fallback store. If not, its sender is told with `status`, and a replayed record is set
    aside: Kafka would refuse it for ever.
    ambiguous: it may be in Kafka all the same. False only for what was never sent, because the client does not tell
    whether an attempt before the last one got through.
    outage: the broker is out for every record, so the circuit opens.
    """

    kind: str
    action: Action
    keep: bool
    ambiguous: bool
    outage: bool
    status: int
    why: str


# Our own kinds. Deadline and overload are settled by the producer adapter, the rest never reach Kafka.
DEADLINE = "gateway.deadline"
CLOSED = "gateway.closed"
CIRCUIT_OPEN = "gateway.circuit_open"
KEY_WAITING = "gateway.key_waiting"
STORE_FULL = "gateway.store_full"
STORE_UNAVAILABLE = "gateway.store_unavailable"
DATABASE_UNAVAILABLE = "gateway.database_unavailable"

_KEPT = 201


def _outage(kind: str, why: str) -> Rule:
    return Rule(kind, Action.RESUME, keep=True, ambiguous=True, outage=True, status=_KEPT, why=why)


def _kept(kind: str, why: str, ambiguous: bool = False) -> Rule:
    return Rule(kind, Action.RESUME, keep=True, ambiguous=ambiguous, outage=False, status=_KEPT, why=why)


def _refused(kind: str, status: int, why: str) -> Rule:
    return Rule(kind, Action.RESUME, keep=False, ambiguous=False, outage=False, status=status, why=why)


def _restart(kind: str, why: str) -> Rule:
    return Rule(kind, Action.RESTART, keep=True, ambiguous=True, outage=False, status=_KEPT, why=why)


def _stop(kind: str, why: str) -> Rule:
    return Rule(kind, Action.STOP, keep=True, ambiguous=True, outage=True, status=_KEPT, why=why)


_RULES = (
    # no answer in time: nobody knows whether the record is in the log
    _outage(DEADLINE, "no acknowledgement within the request's deadline"),
    _outage("_MSG_TIMED_OUT", "not acknowledged within message.timeout.ms"),
    _outage("_TIMED_OUT", "the broker did not answer"),
    _outage("_TIMED_OUT_QUEUE", "timed out in the client's queue"),
    _outage("REQUEST_TIMED_OUT", "the broker timed out waiting for its replicas"),
    _outage("_TRANSPORT", "the connection broke"),
    _outage("NETWORK_EXCEPTION", "the broker lost its connection"),
    # the broker is out or unable; an attempt before this answer may have been appended all the same
    _outage("_ALL_BROKERS_DOWN", "no broker can be reached"),
    _outage("_RESOLVE", "no broker's host name resolves"),
    _outage("_AUTHENTICATION", "the broker does not accept our credentials"),
    _outage("SASL_AUTHENTICATION_FAILED", "the broker does not accept our credentials"),
    _outage("_SSL", "the TLS handshake failed"),
    _outage("BROKER_NOT_AVAILABLE", "the broker is not available"),
    _outage("LEADER_NOT_AVAILABLE", "the partition has no leader"),
    _outage("NOT_LEADER_FOR_PARTITION", "leadership moved and was not found again in time"),
    _outage("KAFKA_STORAGE_ERROR", "the broker's disk failed"),
    _outage("_ISR_INSUFF", "too few in-sync replicas"),
    _outage("NOT_ENOUGH_REPLICAS", "too few in-sync replicas"),
    _outage("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "appended, but on too few replicas"),
    # one record or one topic; the others go on
    _kept(CIRCUIT_OPEN, "the circuit is open: kept without asking Kafka"),
    _kept(KEY_WAITING, "an earlier record of the same key waits: kept behind it, for the order"),
    _kept(CLOSED, "the producer is closed"),
    _kept("_PURGE_QUEUE", "queued when the circuit opened or the producer ended", ambiguous=True),
    _kept("_PURGE_INFLIGHT", "in flight when the circuit opened or the producer ended", ambiguous=True),
    _kept("_DESTROY", "the producer ended", ambiguous=True),
    _kept("_QUEUE_FULL", "the producer's own buffer is full"),
    _kept("THROTTLING_QUOTA_EXCEEDED", "the broker throttles us", ambiguous=True),
    _kept("_UNKNOWN_TOPIC", "the topic is declared but not made yet"),
    _kept("UNKNOWN_TOPIC_OR_PART", "the topic is declared but not made yet", ambiguous=True),
    _kept("UNKNOWN_TOPIC_ID", "the topic was made anew", ambiguous=True),
    _kept("_UNKNOWN_PARTITION", "the partition is not known yet"),
    _kept("INVALID_MSG", "the record was damaged on its way", ambiguous=True),
    # this record, for ever
    _refused("MSG_SIZE_TOO_LARGE", 413, "larger than the broker takes"),
    _refused("RECORD_LIST_TOO_LARGE", 413, "larger than the broker takes"),
    _refused("INVALID_MSG_SIZE", 413, "larger than the broker takes"),
    _refused("INVALID_RECORD", 422, "the broker refuses the record"),
    _refused("INVALID_TIMESTAMP", 422, "the broker refuses the timestamp"),
    _refused("POLICY_VIOLATION", 422, "the broker's policy refuses the record"),
    _refused("TOPIC_EXCEPTION", 422, "the broker refuses the topic's name"),
    _refused("_INVALID_ARG", 422, "the client library refuses the record"),
    _refused("TOPIC_AUTHORIZATION_FAILED", 503, "the gateway may not write to this topic"),
    # the producer's state is lost
    _restart("_FATAL", "a fatal error of the idempotent producer"),
    _restart("_FENCED", "another producer took over"),
    _restart("PRODUCER_FENCED", "another producer took over"),
    _restart("INVALID_PRODUCER_EPOCH", "the producer's epoch is out of date"),
    _restart("INVALID_PRODUCER_ID_MAPPING", "the broker forgot the producer"),
    _restart("UNKNOWN_PRODUCER_ID", "the broker forgot the producer"),
    _restart("OUT_OF_ORDER_SEQUENCE_NUMBER", "the producer and the broker disagree about what was sent"),
    _restart("_GAPLESS_GUARANTEE", "a gap in the sequence"),
    _restart("_STATE", "the producer is in a wrong state"),
    _restart("_CRIT_SYS_RESOURCE", "the client library lacks a system resource"),
    # no restart helps: someone must change something
    _stop("CLUSTER_AUTHORIZATION_FAILED", "the gateway may not produce idempotently"),
    _stop("UNSUPPORTED_VERSION", "the broker is too old"),
    _stop("_UNSUPPORTED_FEATURE", "the broker is too old"),
    # ours: nothing was kept, the sender hears 503
    _refused(STORE_FULL, 503, "the fallback store is full"),
    _refused(STORE_UNAVAILABLE, 503, "the fallback store cannot write"),
    _refused(DATABASE_UNAVAILABLE, 503, "the system of record cannot be reached"),
)

TABLE: Mapping[str, Rule] = {rule.kind: rule for rule in _RULES}


def rule_for(failure: Failure) -> Rule:
    """The failure's rule. A fatal one of any kind restarts unless its own row stops; an unknown kind is an outage."""
    rule = TABLE.get(failure.kind)
    if failure.fatal and (rule is None or rule.action is Action.RESUME):
        return TABLE["_FATAL"]
    return rule or _outage(failure.kind, "a kind that the table does not know: kept, and taken for an outage")


# Errors of the client itself, of no record in particular, that are acted on. The others, such as a broken connection to
# one broker of several, librdkafka mends by itself.
_OF_THE_CLIENT = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_FATAL", "_CRIT_SYS_RESOURCE"})


def client_rule_for(failure: Failure) -> Rule | None:
    """The rule of a failure that belongs to no record; None when there is nothing to do."""
    return rule_for(failure) if failure.fatal or failure.kind in _OF_THE_CLIENT else None


def main() -> int:
    """Print the table."""
    print(f"{'kind':34} {'action':8} {'kept':5} {'in Kafka':9} {'circuit':8} {'answer':6} why")
    for rule in TABLE.values():
        print(
            f"{rule.kind:34} {rule.action:8} {'yes' if rule.keep else 'no':5} "
            f"{'perhaps' if rule.ambiguous else 'no':9} {'opens' if rule.outage else '-':8} {rule.status:<6} {rule.why}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
