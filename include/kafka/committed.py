"""Offsets that exactly-once delivery has committed for the group of the join, with their metadata."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from include.contracts.offsets import Offsets


@dataclass(frozen=True)
class Committed:
    """The group's state: the next offsets of the stream, the last page of pending records, the database's timeline.

    A partition without offset has none here. `timeline` is empty if nothing was ever committed. `overruled` are
    partitions whose ledger was repaired since: the ledger wins there.
    """

    offsets: Offsets
    page: int = 0
    timeline: str = ""
    overruled: frozenset[int] = frozenset()


def committed_by_group(
    group: Consumer, topic: str, partitions: Iterable[int], timeout_s: float
) -> list[TopicPartition]:
    """Return what the consumer's group has committed of these partitions. Raises KafkaException.

    With `isolation.level=read_committed` it waits for the end of transactions that commit offsets of the group.

    The admin client's `list_consumer_group_offsets` ends the process (librdkafka 2.16.0) while the group has no
    coordinator.
    """
    try:
        found: list[TopicPartition] = group.committed([TopicPartition(topic, each) for each in partitions], timeout_s)
    except KafkaException as exc:
        refused = group.poll(0)  # for a group that may not be read `committed` times out, and only `poll` has the error
        if refused is not None and refused.error() is not None:
            raise KafkaException(refused.error()) from exc
        raise
    return found


def committed_of(found: Iterable[TopicPartition], topic_id: str, repaired_at: Mapping[int, int]) -> Committed:
    """Return what was committed of the topic with this id; what other programs committed has no metadata of it.

    `repaired_at`: when a person last repaired the ledger of a partition, in µs since 1970. Raises KafkaException for a
    partition whose offset Kafka does not tell.
    """
    offsets: Offsets = {}
    overruled = set()
    newest: Mapping[str, Any] = {}  # each transaction commits all partitions
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
        about = _metadata(each)
        if each.offset == OFFSET_INVALID or about.get("topic_id") != topic_id:
            continue
        newest = about
        if about.get("repaired_at", 0) < repaired_at.get(each.partition, 0):
            overruled.add(each.partition)
        else:
            offsets[each.partition] = each.offset
    return Committed(offsets, newest.get("page", 0), newest.get("timeline", ""), frozenset(overruled))


def to_commit(topic: str, topic_id: str, committed: Committed, repaired_at: Mapping[int, int]) -> list[TopicPartition]:
    """Return the offsets to commit, from which `committed_of` makes `committed` again."""
    about = {"topic_id": topic_id, "page": committed.page, "timeline": committed.timeline}
    return [
        TopicPartition(topic, partition, offset, json.dumps(about | {"repaired_at": repaired_at.get(partition, 0)}))
        for partition, offset in committed.offsets.items()
    ]


def _metadata(found: TopicPartition) -> dict[str, Any]:
    try:
        about = json.loads(found.metadata or "")
    except ValueError:
        return {}  # committed by a person or another program
    return about if isinstance(about, dict) else {}
