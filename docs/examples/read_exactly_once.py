"""Copies an output topic to SQLite, each record once: the offsets are saved in the transaction of the rows.

    python docs/examples/read_exactly_once.py 127.0.0.1:9092 board-detail copy.sqlite

Runs until the present end of the topic. Another run goes on from there, and fails if the topic does not have the
records from there: they expired, or the topic was made again. Needs confluent-kafka.
"""

import sqlite3
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

_TABLES = """
CREATE TABLE IF NOT EXISTS record (partition INTEGER, "offset" INTEGER, key TEXT, value TEXT, event_id TEXT,
                                   PRIMARY KEY (partition, "offset"));
CREATE TABLE IF NOT EXISTS position (partition INTEGER PRIMARY KEY, next_offset INTEGER);
CREATE TABLE IF NOT EXISTS copied (topic_id TEXT);
"""


def main(bootstrap_servers: str, topic: str, path: str) -> int:
    """Copy the records that are new; returns their number. Raises ValueError if the topic was made again."""
    database = sqlite3.connect(path)
    database.executescript(_TABLES)
    consumer = Consumer({
        "bootstrap.servers": bootstrap_servers, "group.id": "read-exactly-once", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True,
        "auto.offset.reset": "error",
    })  # fmt: skip
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # kept: without it, its answers do not arrive
    topic_id = str(admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id)
    if not (copied := database.execute("SELECT topic_id FROM copied").fetchall()):
        with database:
            database.execute("INSERT INTO copied VALUES (?)", (topic_id,))
    elif copied != [(topic_id,)]:
        raise ValueError(f"{topic} was made again: copy it to another file")
    known = dict(database.execute("SELECT partition, next_offset FROM position"))
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, each, known.get(each, OFFSET_BEGINNING)) for each in partitions])
    left, count = set(partitions), 0
    while left:
        with database:  # one transaction: all or nothing
            for message in consumer.consume(1_000, 1.0):
                if error := message.error():
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    left.discard(message.partition())
                    # of an empty partition, too: what expires there before the next run is noticed
                    database.execute("REPLACE INTO position VALUES (?, ?)", (message.partition(), message.offset()))
                    continue
                headers = dict(message.headers() or ())
                row = (message.partition(), message.offset(), *map(_text, (message.key(), message.value())),
                       _text(headers.get("event-id")))  # fmt: skip
                database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", row)
                database.execute("REPLACE INTO position VALUES (?, ?)", (row[0], row[1] + 1))
                count += 1
    consumer.close()
    return count


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


if __name__ == "__main__":
    print(main(*sys.argv[1:]), "records")
