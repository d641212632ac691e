"""The operational calls: health, metrics, fallback store, schemas."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from include.contracts.pipelines import RAW_TOPICS, TOPICS
from include.gateway.calls.router import Call
from include.gateway.circuit import State
from include.gateway.http.message import Answer, JsonBody, encode, fault
from include.gateway.metrics import age_s
from include.gateway.services import Services

Degraded = Annotated[
    list[Annotated[str, Meta(min_length=1)]],
    Meta(description="Reasons why the gateway works with restrictions, as messages; empty if there are none."),
]
Count = Annotated[int, Meta(ge=0)]
TopicSchema = Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["title", "properties", "required"]})]


class Health(JsonBody):
    """The process answers."""

    status: Literal["alive"]


class Readiness(JsonBody):
    """True if each can make an event durable."""

    kafka: bool
    fallback: bool
    degraded: Degraded


class Fallback(JsonBody):
    """State of the fallback store and of its replay."""

    store_id: Annotated[
        str,
        Meta(
            description="Stays the same as long as the folder of the store exists.",
            extra_json_schema={"format": "uuid"},
        ),
    ]
    backlog: Annotated[Count, Meta(description="Waiting records.")]
    oldest_age_s: Annotated[float, Meta(ge=0, description="Age of the oldest waiting record.")]
    ambiguous: Annotated[Count, Meta(description="Waiting records that may be in Kafka already.")]
    refused: Annotated[Count, Meta(description="Records set aside because Kafka refuses them for good.")]
    lost: Annotated[Count, Meta(description="Records lost to damage of the store, until a person acknowledges it.")]
    clock_ahead_s: Annotated[
        float | None,
        Meta(
            description="Seconds by which the gateway's clock is ahead of the Kafka brokers', at least; null if no "
            "broker has said what time it is."
        ),
    ]
    degraded: Degraded
    bytes: Count
    max_bytes: Count
    circuit: Annotated[str, Meta(extra_json_schema={"enum": [*State]})]
    partitions_out: Annotated[
        list[str],
        Meta(description="Partitions, topic/number, whose events bypass Kafka though the circuit is closed."),
    ]
    replayed: Annotated[Count, Meta(description="Records replayed since the start of the process.")]
    set_aside: Annotated[Count, Meta(description="Records set aside since the start of the process.")]


async def health(services: Services, call: Call, body: bytes) -> Answer:
    """200 while the process answers."""
    return Answer(200, encode(Health("alive")))


async def readiness(services: Services, call: Call, body: bytes) -> Answer:
    """200 while Kafka or the fallback store can make an event durable and the gateway is not ending, else 503."""
    kafka, store = not services.circuit.is_open, await services.store_check.is_writable()
    is_ready = (kafka or store) and not services.ending.is_set()
    return Answer(200 if is_ready else 503, encode(Readiness(kafka, store, services.degraded(store))))


async def metrics(services: Services, call: Call, body: bytes) -> Answer:
    """200 with the metrics in Prometheus' text format. A page may be 0.1 s old."""
    media_type = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
    return Answer(200, services.metrics.recent_page(), (media_type,))


async def fallback(services: Services, call: Call, body: bytes) -> Answer:
    """200 with the state of the fallback store and of its replay."""
    return Answer(200, encode(_fallback(services)))


async def replay(services: Services, call: Call, body: bytes) -> Answer:
    """202. A drain starts now if a broker can be reached; GET /fallback shows its progress."""
    services.drain.wake()
    return Answer(202, encode(_fallback(services)))


async def schema(services: Services, call: Call, body: bytes) -> Answer:
    """200 with the JSON Schema of a topic's value. Raises Fault 404."""
    topic = TOPICS.get(call.parameter)
    if topic is None:
        raise fault(404, "", "no such topic", f"use one of: {', '.join(TOPICS)}")
    return Answer(200, encode(topic.json_schema()), ((b"content-type", b"application/schema+json"),))


async def no_such_topic(services: Services, call: Call, body: bytes) -> Answer:
    """Raise Fault 404. Existing topics have routes of their own."""
    raise fault(404, "", "no such topic", f"use one of: {', '.join(RAW_TOPICS)}")


def _fallback(services: Services) -> Fallback:
    backlog, circuit, counters = services.store.backlog(), services.circuit, services.counters
    return Fallback(
        store_id=services.store.store_id,
        backlog=backlog.waiting,
        oldest_age_s=round(age_s(backlog, services.clock), 3),
        ambiguous=backlog.ambiguous,
        refused=backlog.refused,
        lost=backlog.lost,
        clock_ahead_s=services.clock.ahead_s,
        degraded=services.degraded(),
        bytes=backlog.bytes,
        max_bytes=backlog.max_bytes,
        circuit=circuit.state,
        partitions_out=[f"{topic}/{partition}" for topic, partition in circuit.partitions_out],
        replayed=counters.replayed,
        set_aside=counters.set_aside,
    )
