"""The example for consumers of an output topic copies each record once, and says when the topic lost some."""

import importlib.util
import sqlite3

import pytest
from confluent_kafka import KafkaException

from tests.support.pipeline import ROOT
from tests.support.topic_log import TopicLog

TOPIC = "read-exactly-once"


@pytest.fixture
def copied(kafka, tmp_path):
    """Run the example, and return the number of records that it copied."""
    spec = importlib.util.spec_from_file_location("example", ROOT / "docs/examples/read_exactly_once.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return lambda: example.main(kafka.bootstrap_servers, TOPIC, tmp_path / "copy.sqlite")


def test_each_record_is_copied_once(kafka, copied, tmp_path):
    log = TopicLog(kafka.bootstrap_servers)
    log.make(TOPIC)
    log.send(TOPIC, 0, 3)
    assert (copied(), copied()) == (3, 0)
    log.send(TOPIC, 1, 2)
    assert copied() == 2
    with sqlite3.connect(tmp_path / "copy.sqlite") as database:
        assert database.execute("SELECT count(*) FROM record").fetchone() == (5,)


def test_a_topic_that_was_made_again_is_an_error(kafka, copied):
    log = TopicLog(kafka.bootstrap_servers)
    log.make(TOPIC)
    log.send(TOPIC, 0, 3)
    copied()
    log.make(TOPIC)
    log.send(TOPIC, 0, 5)  # beyond the stored offset
    with pytest.raises(ValueError, match="was made again"):
        copied()


@pytest.mark.parametrize("stored", [100, 0], ids=["beyond the end", "expired"])
def test_a_stored_offset_that_the_topic_does_not_have_is_an_error(kafka, copied, tmp_path, stored):
    log = TopicLog(kafka.bootstrap_servers)
    log.make(TOPIC)
    log.send(TOPIC, 0, 3)
    copied()
    log.delete_before(TOPIC, 0, 2)
    with sqlite3.connect(tmp_path / "copy.sqlite") as database:
        database.execute("UPDATE position SET next_offset = ?", (stored,))
    with pytest.raises(KafkaException, match="_AUTO_OFFSET_RESET"):
        copied()
