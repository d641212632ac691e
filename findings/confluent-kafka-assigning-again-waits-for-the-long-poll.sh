#!/usr/bin/env bash
# confluent-kafka 2.16.1: a consumer that has read a partition to its end and is assigned another one gets no record of
# it until the fetch at the former end returns, after `fetch.wait.max.ms` (500 ms). librdkafka has one fetch in flight
# per broker, and assign() does not cancel it: the records are there, the broker is idle, and nobody asks for them. A
# new consumer for each range, with a new connection, has the records in milliseconds.
#
# Seen: "assigned again: 481 ms, new consumer: 1 ms", "assigned again with fetch.wait.max.ms=50: 31 ms".
# Fails if another version is installed, if assigning again takes less than 300 ms, or another one more than 200 ms.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1
cat > "$folder/ranges.py" <<'PYTHON'
import statistics
import sys
import time

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition

RECORDS = 10
ROUNDS = 6

producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})  # librdkafka's own broker, in this process
(broker,) = producer.list_topics(timeout=30).brokers.values()
for topic in ("one", "other"):
    for _ in range(RECORDS):
        producer.produce(topic, b"x", partition=0)
assert producer.flush(60) == 0


def new_consumer(wait_ms):
    return Consumer({"bootstrap.servers": f"{broker.host}:{broker.port}", "group.id": "g",
                     "fetch.wait.max.ms": wait_ms})


def median_ms(is_new, wait_ms=500):
    """Return the time from assign() to the last record, in rounds that alternate between the topics."""
    consumer, times = new_consumer(wait_ms), []
    for number in range(ROUNDS):
        if is_new:
            consumer.close()
            consumer = new_consumer(wait_ms)
        began, count = time.monotonic(), 0
        consumer.assign([TopicPartition(("one", "other")[number % 2], 0, 0)])
        while count < RECORDS:
            count += len(consumer.consume(RECORDS - count, 1.0))
        times.append((time.monotonic() - began) * 1000)
        time.sleep(0.02)  # the next fetch, at the end, is on its way
    consumer.close()
    return statistics.median(times)


again, new, short = median_ms(False), median_ms(True), median_ms(False, 50)
print(f"assigned again: {again:.0f} ms, new consumer: {new:.0f} ms")
print(f"assigned again with fetch.wait.max.ms=50: {short:.0f} ms")
sys.exit(confluent_kafka.__version__ != "2.16.1" or again < 300 or new > 200 or short > 200)
PYTHON
"$folder/venv/bin/python" "$folder/ranges.py"
