"""A worker's reader of topics, over the whole life of its client."""

from confluent_kafka import Producer

from spark_jobs.batch.splits import TopicSplit, read_topic
from tests.support.topic_log import TopicLog

TOPIC = "split"


def send(kafka, *values):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(TOPIC, value, partition=1)
    assert producer.flush(30) == 0


def read(kafka, count):
    splits = [TopicSplit(TOPIC, 0, 0, 0), TopicSplit(TOPIC, 1, 0, count)]
    return [value for table in read_topic(splits, kafka.bootstrap_servers) for value in table["value"].to_pylist()]


def test_topic_made_again_is_read_by_a_client_that_saw_larger_leader_epochs_in_the_former(kafka):
    TopicLog(kafka.bootstrap_servers).make(TOPIC)
    send(kafka, b"former")
    kafka.stop()
    kafka.start()  # its partitions have a new leader epoch
    assert read(kafka, 1) == [b"former"]

    TopicLog(kafka.bootstrap_servers).make(TOPIC)
    send(kafka, b"one", b"two")
    assert read(kafka, 2) == [b"one", b"two"]
