#!/usr/bin/env bash
# confluent-kafka 2.16.1 (Python 3.11): `Producer.produce_batch` takes a list of dictionaries with the arguments of
# `produce`. It ignores the key `headers`, and any key that it does not know: the records are sent without headers, and
# its result counts them as sent. `AIOProducer.produce` refuses headers with NotImplementedError.
#
# Seen: "produce: [('event-id', b'e1')]", "produce_batch: None, 1 queued", "AIOProducer: NotImplementedError".
# Fails if another version is installed, or if any of the three changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1
cat > "$folder/headers.py" <<'PYTHON'
import asyncio
import sys

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.aio import AIOProducer

HEADERS = [("event-id", b"e1")]

assert confluent_kafka.__version__ == "2.16.1"
producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})  # librdkafka's own broker, in this process
(broker,) = producer.list_topics(timeout=30).brokers.values()
servers = f"{broker.host}:{broker.port}"


def headers_in(topic):
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None and message.value() == b"x"
    return message.headers()


producer.produce("one", b"x", partition=0, headers=HEADERS)
queued = producer.produce_batch("batch", [{"value": b"x", "headers": HEADERS, "no_such_argument": 1}], partition=0)
assert producer.flush(60) == 0


async def refused():
    asynchronous = AIOProducer({"bootstrap.servers": servers})
    try:
        await asynchronous.produce("aio", value=b"x", headers=HEADERS)
    except NotImplementedError as exc:
        return type(exc).__name__
    finally:
        await asynchronous.close()


found = headers_in("one"), headers_in("batch"), queued, asyncio.run(refused())
print(f"produce: {found[0]}")
print(f"produce_batch: {found[1]}, {found[2]} queued")
print(f"AIOProducer: {found[3]}")
sys.exit(found != (HEADERS, None, 1, "NotImplementedError"))
PYTHON
"$folder/venv/bin/python" "$folder/headers.py"
