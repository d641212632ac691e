"""The versions that the driver reads for the days of an application, from a topic in memory."""

import msgspec
import pyarrow as pa
import pytest

from include.contracts.errors import BrokerUnavailable
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.record_table import RAW
from include.runtime.settings import Settings
from spark_jobs.batch import rebuild
from spark_jobs.batch.rebuild import MAX_RECORDS, VersionPreload
from spark_jobs.connectors.splits import TopicSplit
from tests.fakes.events import member

LATER_MS = 1_800_000_000_000


@pytest.fixture
def asked(monkeypatch):
    """The splits that are read."""
    found = []

    def read_topic(splits, kafka, all_headers=True):
        for split in splits:
            found.append((split.partition, split.start, split.end))
            ids = [1_000 * split.partition + offset for offset in range(split.start, split.end)]
            rows = [{"partition": split.partition, "offset": id_ % 1_000, "timestamp": LATER_MS,
                     "key": str(id_).encode(), "value": msgspec.json.encode(member(id_)), "headers": []}
                    for id_ in ids]  # fmt: skip
            yield pa.Table.from_pylist(rows, RAW)

    monkeypatch.setattr(rebuild, "read_topic", read_topic)
    return found


@pytest.fixture
def preload():
    return VersionPreload(Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "k:9092", "DATABASE_HOST": "db"}),
                          PIPELINE)  # fmt: skip


def split(partition, start, end):
    return TopicSplit("member", partition, start, end)


def read(preload, *splits, topic_id="a"):
    left, preloaded = preload.begin(topic_id, splits)
    assert left == []
    found = preloaded.result()
    ids = sorted(id_ for table in found.versions for id_ in table[PIPELINE.table.key_column].to_pylist())
    assert found.records == len(ids)
    return ids


def test_the_next_day_reads_on_where_the_day_before_ended(preload, asked):
    assert read(preload, split(0, 0, 2), split(1, 0, 1)) == [0, 1, 1000]
    asked.clear()
    assert read(preload, split(0, 0, 4), split(1, 0, 1)) == [0, 1, 2, 3, 1000]
    assert asked == [(0, 2, 4), (1, 1, 1)]


@pytest.mark.parametrize(
    ("splits", "topic_id"),
    [
        ([split(0, 0, 3)], "b"),  # the topic was made again
        ([split(0, 1, 3)], "a"),  # the archive has the first record now
        ([split(0, 0, 3), split(1, 0, 1)], "a"),
        ([split(0, 0, 1)], "a"),  # ends before what was read: the topic lost records
        ([], "a"),
    ],
)
def test_other_ranges_are_read_from_their_start(preload, asked, splits, topic_id):
    read(preload, split(0, 0, 2))
    asked.clear()
    ids = read(preload, *splits, topic_id=topic_id)
    assert ids == sorted(1_000 * each.partition + offset for each in splits for offset in range(each.start, each.end))
    assert asked == [(each.partition, each.start, each.end) for each in splits]


def test_a_day_after_a_failed_read_reads_what_that_one_should_have_read(preload, asked, monkeypatch):
    read(preload, split(0, 0, 2))
    with monkeypatch.context() as patched:
        patched.setattr(rebuild, "read_topic", _unavailable)
        _, preloaded = preload.begin("a", [split(0, 0, 3)])
        with pytest.raises(BrokerUnavailable):
            preloaded.result()
    assert read(preload, split(0, 0, 3)) == [0, 1, 2]


def _unavailable(*_, **__):
    raise BrokerUnavailable(topic="member")


def test_a_split_that_is_too_large_is_left_to_the_tasks(preload, asked):
    large = split(0, 0, MAX_RECORDS + 1)
    left, preloaded = preload.begin("a", [large, split(1, 0, 2)])
    assert (left, preloaded.result().records) == ([large], 2)
