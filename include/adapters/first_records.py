"""When the first record that a topic still holds was made."""

import datetime as dt

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from include.errors import BrokerUnavailable

TIMEOUT_S = 30
EVER = 0  # a timestamp that no record is older than


def first_times(bootstrap_servers: str, topic: str, partitions: list[int]) -> dict[int, dt.datetime]:
    """The timestamp of each partition's first record; an empty partition is missing. Raises BrokerUnavailable."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    wanted = {TopicPartition(topic, partition): OffsetSpec.for_timestamp(EVER) for partition in partitions}
    try:
        found = {place.partition: future.result()
                 for place, future in admin.list_offsets(wanted, request_timeout=TIMEOUT_S).items()}  # fmt: skip
    except KafkaException as exc:
        raise BrokerUnavailable(topic=topic, reason=str(exc)) from exc
    return {
        partition: dt.datetime.fromtimestamp(result.timestamp / 1000, dt.UTC)
        for partition, result in found.items()
        if result.offset >= 0 and result.timestamp >= 0
    }
