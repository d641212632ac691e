"""A worker's reader of topics, over the whole life of its client."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from include.contracts.errors import BrokerUnavailable
from include.kafka import reader
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors import splits
from spark_jobs.connectors.splits import ROWS, TopicSplit, read_topic
from tests.support.freezing import freeze
from tests.support.sending import sending
from tests.support.topic_log import TopicLog

TOPIC = "split"


@pytest.fixture(autouse=True)
def topic(kafka):
    TopicLog(kafka.bootstrap_servers).make(TOPIC)


def send(kafka, *values, partition=1):
    with sending(kafka.bootstrap_servers) as sender:
        for value in values:
            sender.send(TOPIC, value, partition=partition)


def read(kafka, count, partition=1):
    wanted = [TopicSplit(TOPIC, 1 - partition, 0, 0), TopicSplit(TOPIC, partition, 0, count)]
    for table in read_topic(wanted, KafkaConnection(kafka.bootstrap_servers), ("value",)):
        yield table["value"].to_pylist()


def test_topic_made_again_is_read_by_a_client_that_saw_larger_leader_epochs_in_the_former(kafka):
    send(kafka, b"former")
    kafka.stop()
    kafka.start()  # its partitions have a new leader epoch
    assert [*read(kafka, 1)] == [[b"former"]]

    TopicLog(kafka.bootstrap_servers).make(TOPIC)
    send(kafka, b"one", b"two")
    assert [value for values in read(kafka, 2) for value in values] == [b"one", b"two"]


def test_time_that_the_caller_takes_for_a_table_is_not_kafkas(kafka, monkeypatch):
    sent = [b"%d" % number for number in range(2 * ROWS)]
    send(kafka, *sent)
    assert [*read(kafka, 1)] == [sent[:1]]
    monkeypatch.setattr(splits, "READ_TIMEOUT_S", 2.0)
    found = []
    for values in read(kafka, len(sent)):
        found += values
        time.sleep(0 if len(found) == len(sent) else 2.5)
    assert found == sent


def test_broker_that_says_nothing_is_named_when_the_time_is_up(kafka, monkeypatch):
    send(kafka, b"one")
    assert [*read(kafka, 1)] == [[b"one"]]
    freeze([kafka.pid])
    try:
        with monkeypatch.context() as frozen:
            frozen.setattr(splits, "READ_TIMEOUT_S", 4.0)
            frozen.setattr(reader, "RENEWAL_S", 0.5)
            with pytest.raises(BrokerUnavailable, match="in time"):
                [*read(kafka, 1)]
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    assert [*read(kafka, 1)] == [[b"one"]]


def test_two_threads_that_read_at_once_have_their_records_each(kafka):
    values = [b"%d" % number for number in range(2 * ROWS)]
    others = [b"other %d" % number for number in range(2 * ROWS)]
    send(kafka, *values)
    send(kafka, *others, partition=0)
    mine, theirs = read(kafka, len(values)), read(kafka, len(others), partition=0)
    first = next(mine)
    with ThreadPoolExecutor(1) as executor:
        others_first = executor.submit(next, theirs).result()
        assert [*first, *chain.from_iterable(mine)] == values
        rest = executor.submit(lambda: [*chain.from_iterable(theirs)]).result()
    assert [*others_first, *rest] == others
