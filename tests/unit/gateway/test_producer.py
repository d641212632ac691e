"""The producer adapter, as far as it needs no broker."""

import asyncio
import logging
import threading

import pytest
from confluent_kafka import KafkaError

from include.gateway import kafka_producer
from include.gateway.kafka_producer import KafkaProducer, LibrdkafkaProducer, _ClientLog, _failure
from include.runtime.kafka_connection import KafkaConnection
from tests.fakes.events import record


def test_record_that_the_client_itself_refuses_for_its_size_is_too_large_for_ever():
    async def scenario():
        producer = KafkaProducer(KafkaConnection("127.0.0.1:9"), 1.0)
        producer.start(lambda failure: None)
        try:
            return await producer.send(record(1, "e-1", body="x" * 2_000_000))
        finally:
            await producer.close(0)

    assert asyncio.run(scenario()).kind == "gateway.record_too_large"


@pytest.mark.parametrize(
    ("code", "is_of_record", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, True, "gateway.record_too_large"),
        (KafkaError.MSG_SIZE_TOO_LARGE, False, "MSG_SIZE_TOO_LARGE"),
        (KafkaError.INVALID_RECORD, True, "INVALID_RECORD"),
    ],
)
def test_too_large_is_the_records_only_where_the_record_is(code, is_of_record, kind):
    assert _failure(KafkaError(code), 3, is_of_record).kind == kind


def test_warning_of_another_cluster_is_acted_on_by_its_facility_and_logged_as_any_other(caplog):
    changes = []
    log = _ClientLog(lambda: changes.append(1))
    text = 'Broker b/1 reports different ClusterId "B" than previously known "A"'
    with caplog.at_level(logging.WARNING):
        log.log(logging.WARNING, "%s [%s] %s", "FAIL", "rdkafka#producer-1", "CLUSTERID")
        assert changes == []
        log.log(logging.WARNING, "%s [%s] %s", "CLUSTERID", "rdkafka#producer-1", text)
    assert changes == [1]
    assert text in caplog.text


def test_call_of_the_client_that_never_returns_holds_up_neither_the_gateway_nor_other_calls(monkeypatch, caplog):
    returns = threading.Event()

    class Stuck(LibrdkafkaProducer):
        def list_topics(self, *args, **kwargs):
            returns.wait()

    monkeypatch.setattr(kafka_producer, "LibrdkafkaProducer", Stuck)
    monkeypatch.setattr(kafka_producer, "_GRACE_S", 0.1)

    async def scenario():
        producer = KafkaProducer(KafkaConnection("127.0.0.1:9"), 1.0)
        producer.start(lambda failure: None)
        try:
            async with asyncio.timeout(20):
                answers = [await producer.cluster_id(0.01) for _ in range(40)]  # more than a pool has threads
                return answers, await asyncio.to_thread(lambda: "free")
        finally:
            await producer.close(0)

    try:
        assert asyncio.run(scenario()) == ([None] * 40, "free")
    finally:
        returns.set()
    assert "the client did not return within 0.11 s, but should after 0.01 s" in caplog.text
