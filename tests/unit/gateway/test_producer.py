"""The producer adapter, as far as it needs no broker."""

import asyncio
import logging
import threading
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from include.gateway import kafka_producer
from include.gateway.kafka_producer import KafkaProducer, LibrdkafkaProducer, _ClientLog, _failure
from include.gateway.supervision import CLIENT_STUCK
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


def test_client_whose_call_never_returns_is_replaced_and_holds_up_nothing(monkeypatch, caplog):
    returns, asked = threading.Event(), []

    class Stuck(LibrdkafkaProducer):
        def list_topics(self, *args, **kwargs):
            asked.append(self)
            returns.wait()

    monkeypatch.setattr(kafka_producer, "LibrdkafkaProducer", Stuck)
    monkeypatch.setattr(kafka_producer, "GRACE_S", 0.1)
    monkeypatch.setattr(kafka_producer, "_MAX_STUCK", 10)
    failures = []

    async def scenario():
        producer = KafkaProducer(KafkaConnection("127.0.0.1:9"), 1.0)
        producer.start(failures.append)
        try:
            async with asyncio.timeout(20):
                answers = {await producer.cluster_id(0.01) for _ in range(3)}  # asks once
                calls = len(asked)
                restarts = 0
                while producer.restart(producer.generation):
                    restarts += 1
                    answers.add(await producer.cluster_id(0.01))
                return answers, calls, restarts, len(asked), await asyncio.to_thread(lambda: "free")
        finally:
            await producer.close(0)

    try:
        assert asyncio.run(scenario()) == ({None}, 1, 9, 10, "free")
    finally:
        returns.set()
    stuck = [failure.generation for failure in failures if failure.kind == CLIENT_STUCK]
    assert stuck == list(range(10))
    assert "the client did not return within 0.11 s, but should after 0.01 s" in caplog.text
    assert "the client is not replaced: 10 calls of former ones have not returned" in caplog.text


def test_each_of_many_calls_in_succession_is_answered(monkeypatch):
    class Quick(LibrdkafkaProducer):
        def list_topics(self, *args, **kwargs):
            return SimpleNamespace(topics={}, cluster_id="own")

    monkeypatch.setattr(kafka_producer, "LibrdkafkaProducer", Quick)

    async def scenario():
        producer = KafkaProducer(KafkaConnection("127.0.0.1:9"), 1.0)
        producer.start(lambda failure: None)
        try:
            return {await producer.cluster_id(10) for _ in range(1000)}
        finally:
            await producer.close(0)

    assert asyncio.run(scenario()) == {"own"}


def test_meaning_of_blocking_was_looked_up_for_the_clients_version():
    """Before a version is added here, read in its source whether `purge` still inverts `blocking`: see `_purge`."""
    assert confluent_kafka.__version__ in {"2.16.1"}
