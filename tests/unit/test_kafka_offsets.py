"""Offsets of topics, as `OffsetReader` returns them of a client that does not reach every leader."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo

from include.contracts.errors import BrokerUnavailable
from include.kafka.offsets import OffsetReader
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.kafka_connection import KafkaConnection

KAFKA = KafkaConnection.from_environment(EnvironmentReader({"KAFKA_BOOTSTRAP_SERVERS": "localhost:1"}))
NO_RECORD = -1  # as new as the instant


class Client:
    """Stands in for an AdminClient of a topic whose partitions have these offsets."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self._offsets = offsets

    def list_topics(self, topic: str, timeout: float) -> object:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=self._offsets)})

    def list_offsets(self, wanted: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, Future]:
        answers = {partition: Future() for partition in wanted}
        for partition, answer in answers.items():
            answer.set_result(ListOffsetsResultInfo(self._offsets[partition.partition], 0, -1))
        return answers

    def poll(self, _: float) -> int:
        return 0


def reader_of(offsets: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> OffsetReader:
    monkeypatch.setattr("include.kafka.offsets.AdminClient", lambda _: Client(offsets))
    return OffsetReader(KAFKA)


def test_returns_the_ends_of_a_topic(monkeypatch):
    assert reader_of({0: 7, 1: 0}, monkeypatch).ends("member") == {0: 7, 1: 0}


def test_omits_partitions_without_a_record_that_is_new_enough(monkeypatch):
    assert reader_of({0: 7, 1: NO_RECORD}, monkeypatch).newest_times_ms("member").keys() == {0}


@pytest.mark.parametrize("call", ["earliest", "ends", "high_watermarks", "available", "first_times", "newest_times_ms"])
def test_a_leader_that_does_not_answer_is_no_offset(call, monkeypatch):
    reader = reader_of({0: OFFSET_INVALID, 1: 3, 2: OFFSET_INVALID}, monkeypatch)
    with pytest.raises(BrokerUnavailable, match=r"topic=member, partitions=\[0, 2\]"):
        getattr(reader, call)("member")


def test_a_client_that_does_not_find_the_brokers_again_is_replaced(monkeypatch):
    def lost(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))

    reader = reader_of({0: 7}, monkeypatch)
    monkeypatch.setattr(reader._admin, "list_topics", lost)
    with pytest.raises(BrokerUnavailable, match="Failed to get metadata"):
        reader.ends("member")
    assert reader.ends("member") == {0: 7}
