"""Produces tombstones of a key of the table and of the stream's keys joined to it, as the gateway produces them."""

import asyncio
import uuid
from collections.abc import Iterator, Sequence

from include.contracts.clock import Clock
from include.contracts.definition import Definition
from include.contracts.errors import BrokerUnavailable
from include.contracts.topics import Topic
from include.gateway.intake import accepted_at, make_record
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Record
from include.gateway.reconcile import send
from include.runtime.kafka_connection import KafkaConnection

_DELIVERY_S = 30.0
_REACH_S = 10.0
_AT_ONCE = 1_000


def produce_tombstones(
    kafka: KafkaConnection, definition: Definition, key: int, stream_keys: Sequence[int], clock: Clock
) -> int:
    """Send a tombstone per key of the stream, then the table's. Return their number once Kafka has acknowledged all.

    Blocks. Raises BrokerUnavailable; some tombstones may be in Kafka then.
    """
    records = [
        *_tombstones(definition.stream, stream_keys, clock), *_tombstones(definition.table, [key], clock),
    ]  # fmt: skip
    return asyncio.run(_produce(kafka, records))


def _tombstones(topic: Topic, keys: Sequence[int], clock: Clock) -> Iterator[Record]:
    accepted = accepted_at(clock.now())
    for key in keys:
        yield make_record(topic, key, None, str(uuid.uuid4()), accepted)


async def _produce(kafka: KafkaConnection, records: Sequence[Record]) -> int:
    producer = KafkaProducer(kafka, _DELIVERY_S)
    producer.start(lambda failure: None)
    try:
        if await producer.cluster_id(_REACH_S) is None:
            raise BrokerUnavailable(bootstrap_servers=kafka.bootstrap_servers)
        sent = 0
        for first in range(0, len(records), _AT_ONCE):
            sent += await send(producer, records[first : first + _AT_ONCE])
    finally:
        await producer.close(1.0)
    if sent != len(records):
        raise BrokerUnavailable("Kafka refused tombstones; the log says why", sent=sent, of=len(records))
    return sent
