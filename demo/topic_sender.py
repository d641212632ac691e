"""Sends records directly to a topic, with the same key and headers as the gateway."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from confluent_kafka import Producer

from include.contracts import headers
from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import PipelineError
from include.contracts.topics import PYTHON_PRODUCER_SETTINGS

_TELL_EVERY = 2_000


Headers = list[tuple[str, bytes]]
Record = tuple[str, dict[str, Any], Headers]  # key, value, headers


def as_gateway(topic: str, values: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """Yield members or boards as records of their topic."""
    accepted = rfc3339(SystemClock().now()).encode()
    for value in values:
        event_id = f"load-{topic}-{value['id']}-{value['modifiedAt']}"
        yield str(value["id"]), value, [(headers.EVENT_ID, event_id.encode()), (headers.ACCEPTED_AT, accepted)]


def send(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[Record],
    reached: Callable[[int], None] | None = None,
    timestamp_ms: int = 0,
) -> int:
    """Send all records; returns their number. Raises PipelineError if Kafka does not acknowledge one.

    `reached` is called with the number of acknowledged records. The records' timestamp is now, unless `timestamp_ms`
    (since 1970) is given.
    """
    failed: list[str] = []
    producer = Producer({
        "bootstrap.servers": bootstrap_servers, **PYTHON_PRODUCER_SETTINGS, "linger.ms": 20, "batch.size": 262_144,
        "queue.buffering.max.messages": 500_000,
    })  # fmt: skip

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    sent = 0
    for key, value, marks in records:
        encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        while True:
            try:
                producer.produce(topic, encoded, key, headers=marks, timestamp=timestamp_ms, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        sent += 1
        if sent % _TELL_EVERY == 0:
            producer.poll(0)
            if reached is not None:
                reached(sent - len(producer))
    left = producer.flush(120)
    if reached is not None:
        reached(sent - left)
    if failed or left:
        raise PipelineError(
            f"Kafka did not take {len(failed) + left} of {sent} records",
            topic=topic,
            first=failed[0] if failed else "timed out",
        )
    return sent
