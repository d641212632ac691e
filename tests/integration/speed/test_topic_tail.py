"""The driver's reader of a topic: exactly the records of each range, whatever was fetched ahead or given up before."""

import random
import time
from contextlib import closing
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from include.contracts.errors import BrokerUnavailable
from include.kafka import reader
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from tests.support.sending import sending
from tests.support.topic_log import TopicLog

TOPIC = "tail"
TRANSACTIONS, SENT = 8, 12  # per partition, beside a marker of each transaction


@pytest.fixture(scope="module")
def log(kafka):
    """A topic of three partitions, one of them with transactions, of which every other one was aborted."""
    made = TopicLog(kafka.bootstrap_servers)
    made.make(TOPIC, 3)
    with sending(kafka.bootstrap_servers) as sender:
        for number in range(TRANSACTIONS * SENT):
            for partition in (0, 1):
                sender.send(TOPIC, str(number), partition=partition)
    with_transactions = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "tail"})
    with_transactions.init_transactions(30)
    for turn in range(TRANSACTIONS):
        with_transactions.begin_transaction()
        for number in range(SENT):
            with_transactions.produce(TOPIC, str(number), partition=2)
        with_transactions.flush(30)
        (with_transactions.abort_transaction if turn % 2 else with_transactions.commit_transaction)(30)
    return made


def there(start, ends):
    """The committed records of a range."""
    found = {(p, o) for p in (0, 1) for o in range(start[p], ends[p])}
    length = SENT + 1
    visible = {o for turn in range(0, TRANSACTIONS, 2) for o in range(turn * length, turn * length + SENT)}
    return found | {(2, o) for o in range(start[2], ends[2]) if o in visible}


@pytest.mark.parametrize("most_ahead", [0, 5, reader.MAX_AHEAD])
@pytest.mark.parametrize("seed", range(6))
def test_each_range_has_its_records_once_and_in_order(kafka, log, monkeypatch, seed, most_ahead):
    monkeypatch.setattr(reader, "MAX_AHEAD", most_ahead)
    chance = random.Random(seed)
    log.wait_for_markers(TOPIC)
    last = log.offsets.ends(TOPIC)
    assert last == {0: 96, 1: 96, 2: 104}
    with closing(TopicTail(KafkaConnection(kafka.bootstrap_servers), TOPIC)) as tail:
        position = dict.fromkeys(last, 0)
        tail.begin(position)
        given_up = []  # not closed: their end must not disturb the later ones, whenever it comes
        for _ in range(40):
            if chance.random() < 0.2:
                position = {partition: chance.randint(0, end) for partition, end in last.items()}
                tail.begin(position)
            ends = {
                p: chance.choice((at, min(at + 1, last[p]), chance.randint(at, last[p]))) for p, at in position.items()
            }
            reading = tail.iter_to(ends)
            if chance.random() < 0.3:
                given_up.append(reading)
                next(reading, None)
                if chance.random() < 0.5:
                    given_up.clear()
                if tail.position != ends:
                    assert tail.position == position
                    continue
                position = ends
                continue
            read = [(each.partition(), each.offset()) for records in reading for each in records]
            assert {*read} == there(position, ends)
            assert all([o for q, o in read if q == p] == sorted({o for q, o in read if q == p}) for p in last)
            assert tail.position == ends
            position = ends


def test_the_number_of_records_of_a_batch_follows_their_sizes(kafka, monkeypatch):
    monkeypatch.setattr(reader, "MAX_RECORDS", 20)
    monkeypatch.setattr(reader, "BATCH_BYTES", 1_000_000)
    log = TopicLog(kafka.bootstrap_servers)
    log.make("large", 1)
    with sending(kafka.bootstrap_servers) as sender:
        for size in (200_000,) * 60 + (10,) * 300:
            sender.send("large", b"x" * size, partition=0)
    with closing(TopicTail(KafkaConnection(kafka.bootstrap_servers), "large")) as tail:
        tail.begin({0: 0})
        first, *rest = ([*map(len, records)] for records in tail.iter_to(log.offsets.ends("large")))
    assert len(first) <= 20
    assert all(len(sizes) <= 5 for sizes in rest if sizes[0] > 10)
    assert max(len(sizes) for sizes in rest if sizes[0] == 10) > 5
    assert sum(map(len, rest), len(first)) == 360


class OneStuck:
    """A client whose partition 0 does not respond, while partition 1 has records without end."""

    def __init__(self, settings):
        self.paused, self.offset = set(), 0

    def assign(self, partitions):
        pass

    def pause(self, partitions):
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions):
        self.paused -= {each.partition for each in partitions}

    def consume(self, count, timeout_s):
        time.sleep(0.01)
        if 1 in self.paused:
            return []
        first, self.offset = self.offset, self.offset + 100
        return [StubRecord(offset) for offset in range(first, self.offset)]

    def close(self):
        pass


class StubRecord(NamedTuple):
    at: int

    def error(self):
        return None

    def __len__(self):
        return 10

    def partition(self):
        return 1

    def offset(self):
        return self.at


def test_a_partition_that_does_not_respond_is_no_progress_of_another_one(monkeypatch):
    monkeypatch.setattr(reader, "Consumer", OneStuck)
    monkeypatch.setattr(reader, "MAX_AHEAD", 1_000)
    tail = TopicTail(KafkaConnection("none:9"), TOPIC)
    tail.begin({0: 0, 1: 0})
    with pytest.raises(BrokerUnavailable):
        [*tail.iter_to({0: 5, 1: 250}, timeout_s=1)]
    assert len(tail._ahead) <= 1_100
    assert tail.position == {0: 0, 1: 0}


def test_a_batch_of_zstd_may_unpack_to_more_than_the_client_takes_by_default(kafka, log):
    size, count = 1 << 20, 110  # 115 MB; the default is 100 MB
    log.make("packed", 1)
    packing = {"compression.type": "zstd", "linger.ms": 60_000, "message.max.bytes": 200_000_000,
               "batch.size": 200_000_000}  # fmt: skip
    with sending(kafka.bootstrap_servers, packing) as sender:
        for _ in range(count):
            sender.send("packed", bytes(size))
    with closing(TopicTail(KafkaConnection(kafka.bootstrap_servers), "packed")) as tail:
        tail.begin({0: 0})
        assert sum(len(record) for records in tail.iter_to({0: count}) for record in records) == size * count
