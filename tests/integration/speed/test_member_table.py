"""The member table on a real broker: loaded, refreshed record by record and in bulk, folded, compacted, never older."""

import pytest
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from include.contracts.errors import BrokerUnavailable, TableReplaced
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.admin import create_topics
from include.kafka.offsets import OffsetReader
from include.kafka.topic_tail import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.joining import newest_versions
from spark_jobs.speed import table_state as member_preload
from spark_jobs.speed import table_state as module
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.table_state import TablePreload, TableState
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.pipeline import produce, with_topics
from tests.support.topic_log import TopicLog

MORNING, NOON, EVENING = (f"2026-11-20T{hour}:00:00.000Z" for hour in ("01", "03", "11"))


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    return with_topics(kafka, postgres, f"members_{abs(hash(tmp_path))}", tmp_path)


@pytest.fixture
def table(spark, settings):
    servers = settings.kafka.connection
    tail, rejects = TopicTail(servers, "member"), []
    table = TableState(spark, OffsetReader(servers), tail, PIPELINE, DriverState(), rejects.extend, 1 << 20, 2)
    table.rejects = rejects
    yield table
    table.close()


@pytest.fixture
def ids(request):
    """Ids of its own for each test: they share the topic."""
    first = 1000 * (1 + abs(hash(request.node.name)) % 1_000_000)
    return range(first, first + 1000)


def names(table, ids):
    """Return the nickname that a join would find by id, None for a deleted member."""
    versions = table.relations()[0]
    for relation in table.relations()[1:]:
        versions = versions.union(relation)
    found = newest_versions(versions.where(versions.id_.between(ids[0], ids[-1])), "id_").collect()
    return {row.id_ - ids[0]: None if row.deleted else row.nickname_ for row in found}


def send(settings, ids, *changes):
    """(number, nickname, modifiedAt), or a number alone: a tombstone."""
    produce(settings, [
        ("member", ids[c], None) if isinstance(c, int)
        else ("member", ids[c[0]], member(ids[c[0]], nickname=c[1], modifiedAt=c[2]))
        for c in changes
    ])  # fmt: skip


def test_loads_the_newest_version_of_each_member_and_their_rejects(table, settings, ids):
    send(settings, ids, (1, "old", MORNING), (1, "new", NOON), (1, "replayed", MORNING), (2, "gone", NOON), 2)
    produce(settings, [("member", ids[3], b"{nonsense")])
    table.load()
    assert names(table, ids) == {1: "new", 2: None}
    assert str(ids[3]).encode() in [reject.key for reject in table.rejects]


def test_what_was_read_before_there_was_a_session_is_the_same_table(table, settings, ids):
    send(settings, ids, (1, "old", MORNING), (1, "new", NOON), (1, "replayed", MORNING), (2, "gone", NOON), 2)
    produce(settings, [("member", ids[3], b"{nonsense"), ("member", ids[4], member(ids[4], nickname="a\x07b"))])
    preloaded = preloaded_members(settings)
    send(settings, ids, (1, "meanwhile", EVENING), (5, "came later", NOON))
    table.load(preloaded)
    assert names(table, ids) == {1: "new", 2: None}
    assert {str(ids[3]).encode(), str(ids[4]).encode()} <= {reject.key for reject in table.rejects}
    assert sorted(table.refresh()) == [ids[1], ids[5]]
    assert names(table, ids) == {1: "meanwhile", 2: None, 5: "came later"}


def test_a_topic_too_large_for_the_driver_is_left_to_spark(settings, ids, monkeypatch):
    monkeypatch.setattr(member_preload, "MAX_RECORDS", 2)
    send(settings, ids, (1, "a", NOON), (2, "b", NOON), (3, "c", NOON))
    assert preloaded_members(settings) is None


def test_a_topic_of_more_bytes_than_the_driver_takes_is_left_to_spark(settings, ids):
    produce(settings, [("member", ids[n], b"{nonsense" * 100) for n in range(20)])
    assert preloaded_members(settings, 1_000) is None


def test_rejects_are_kept_in_pages_whatever_their_size(table, settings, ids):
    produce(settings, [("member", ids[n], b"{nonsense" * 100 * n) for n in range(20)])
    table._max_bytes = 5_000
    table.load()
    assert [r.value for r in sorted(table.rejects, key=lambda r: len(r.value)) if int(r.key or 0) in ids] == [
        b"{nonsense" * 100 * n for n in range(20)
    ]


def test_a_broker_that_is_out_leaves_the_table_to_spark(settings, kafka, caplog):
    reader = TablePreload(OffsetReader(settings.kafka.connection), Missing(), PIPELINE, 1 << 20)
    reader.start()
    assert reader.result() is None
    assert "Spark will read the table" in caplog.text


class Missing:
    """A tail that Kafka gives nothing to."""

    position = None

    def begin(self, offsets):
        pass

    def iter_to(self, ends):
        raise BrokerUnavailable(topic="member")


def preloaded_members(settings, max_bytes=1 << 20):
    servers = settings.kafka.connection
    tail = TopicTail(servers, "member")
    reader = TablePreload(OffsetReader(servers), tail, PIPELINE, max_bytes)
    reader.start()
    try:
        return reader.result()
    finally:
        tail.close()


def test_takes_changes_one_by_one_and_never_an_older_one(table, settings, ids):
    send(settings, ids, (1, "loaded", NOON))
    table.load()
    assert table.refresh() == []
    send(settings, ids, (1, "late replay", MORNING), (2, "first", NOON))
    assert sorted(table.refresh()) == [ids[1], ids[2]]
    assert names(table, ids) == {1: "loaded", 2: "first"}
    send(settings, ids, (1, "newer", EVENING), 2)
    table.refresh()
    assert names(table, ids) == {1: "newer", 2: None}


def test_a_change_that_breaks_the_contract_is_a_reject_and_the_others_count(table, settings, ids):
    table.load()
    table.rejects.clear()
    produce(settings, [("member", ids[1], member(ids[1], nickname="a\x07b")), ("member", ids[2], b"[]"),
                       ("member", "x", None), ("member", ids[3], member(ids[4]))])  # fmt: skip
    send(settings, ids, (5, "good", NOON))
    assert table.refresh() == [ids[5]]
    reasons = [reject.reason.split(":")[0] for reject in table.rejects]
    assert sorted(reasons) == ["/", "/key", "/key", "/nickname"]


def test_many_changes_at_once_are_read_by_spark(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "TAIL_ROWS", 3)
    send(settings, ids, (1, "loaded", NOON))
    table.load()
    send(settings, ids, *((n, f"v{n}", EVENING) for n in range(1, 8)))
    assert table.refresh() is None  # the driver does not collect their keys
    assert table.known([ids[0], ids[7], ids[1]]) == [ids[1], ids[7]]
    assert names(table, ids) == {n: f"v{n}" for n in range(1, 8)}
    send(settings, ids, (2, "after", "2026-11-20T12:00:00.000Z"))
    assert table.refresh() == [ids[2]]
    assert names(table, ids)[2] == "after"


def test_recent_changes_become_a_level_and_levels_the_base(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "RECENT_ROWS", 2)
    monkeypatch.setattr(module, "COMPACT_ROWS", 4)
    monkeypatch.setattr(module, "COMPACT_SHARE", 0.0)
    send(settings, ids, *((n, "loaded", NOON) for n in range(10)))
    table.load()
    for turn in range(4):
        send(settings, ids, *((3 * turn + n, f"turn {turn}", EVENING) for n in range(3)))
        table.refresh()
        expected = dict.fromkeys(range(10), "loaded") | {n: f"turn {n // 3}" for n in range(3 * turn + 3)}
        assert names(table, ids) == expected

    def is_compacted():
        table.refresh()
        return len(table.relations()) < 3

    wait_until(is_compacted, 60, "the changes are in the base")
    assert names(table, ids) == {n: f"turn {n // 3}" for n in range(12)}


def test_a_larger_table_folds_more_changes_at_once(table, settings, ids, monkeypatch):
    monkeypatch.setattr(module, "RECENT_ROWS", 2)
    send(settings, ids, *((n, "loaded", NOON) for n in range(10)))
    monkeypatch.setattr(module, "RECENT_SHARE", 5 / table.load())
    for expected, first in ((1, 0), (2, 3)):  # 3 changes, then 6
        send(settings, ids, *((first + n, "changed", EVENING) for n in range(3)))
        table.refresh()
        assert len(table._levels) == expected


def test_a_compaction_leaves_the_cores_to_the_batches(table, spark):
    tasks = 40
    pause = F.expr("reflect('java.util.concurrent.locks.LockSupport', 'parkNanos', 250000000L)")
    slow = spark.range(0, tasks, 1, tasks).where(pause.isNotNull())
    versions = slow.select(F.col("id").alias("id_"),
                           *[F.lit(None).cast("string").alias(name) for name in table._columns],
                           F.lit(0).alias("partition"), F.lit(0).cast("long").alias("offset"),
                           F.current_timestamp().alias("version_at"), F.lit(False).alias("deleted"))  # fmt: skip
    tracker = spark.sparkContext.statusTracker()

    def done():
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return max((stage.numCompletedTasks for stage in stages if stage and stage.numTasks == tasks), default=0)

    table._partitions = 2
    compaction = table._compactor.submit(table._merged, [module._Level(versions, tasks)])
    wait_until(lambda: done() > 0, 60, "it is under way")
    spark.range(0, 100, 1, 2).count()  # a batch: with one queue for all it would come after the compaction's tasks
    assert 0 < done() < tasks
    assert compaction.result().rows == tasks


def test_blocks_that_are_lost_are_loaded_again(table, settings, spark, ids, monkeypatch):
    monkeypatch.setattr(module, "RECENT_ROWS", 2)
    table._is_local = False  # as on a cluster; test_lost_executor.py kills executors of one
    send(settings, ids, *((n, "loaded", NOON) for n in range(10)))
    table.load()
    for turn in range(2):
        send(settings, ids, *((3 * turn + n, f"turn {turn}", EVENING) for n in range(3)))
        assert sorted(table.refresh()) == [ids[3 * turn + n] for n in range(3)]
    expected = dict.fromkeys(range(10), "loaded") | {n: f"turn {n // 3}" for n in range(6)}

    lose_blocks(spark)
    send(settings, ids, (9, "meanwhile", EVENING))
    assert table.refresh() is None, "the keys that changed meanwhile are not known"
    assert names(table, ids) == expected | {9: "meanwhile"}
    assert table.refresh() == []


def test_a_look_for_keys_loads_lost_blocks_again(table, settings, spark, ids, monkeypatch):
    monkeypatch.setattr(module, "RECENT_ROWS", 2)
    table._is_local = False
    send(settings, ids, *((n, "loaded", NOON) for n in range(10)))
    table.load()
    for turn in range(2):
        send(settings, ids, *((3 * turn + n, f"turn {turn}", EVENING) for n in range(3)))
        table.refresh()
    lose_blocks(spark)
    assert table.known([ids[0], ids[9], ids[10]]) == [ids[0], ids[9]]
    assert table.refresh() is None


def lose_blocks(spark):
    """Remove the blocks of all RDDs, as the loss of all executors does."""
    for rdd in list(spark.sparkContext._jsc.getPersistentRDDs().values()):
        rdd.unpersist(True)


def test_what_could_not_be_read_is_read_by_the_next_refresh(table, settings, ids, monkeypatch):
    table.load()
    send(settings, ids, (1, "waits", NOON))

    def silent(ends, timeout_s=0.0):
        raise BrokerUnavailable(topic="member")

    with monkeypatch.context() as patched:
        patched.setattr(table._tail, "iter_to", silent)
        with pytest.raises(BrokerUnavailable):
            table.refresh()
    assert table.refresh() == [ids[1]]
    assert names(table, ids) == {1: "waits"}


@pytest.mark.parametrize("rows", [1, 3], ids=["few", "many"])
def test_keys_of_a_refresh_whose_merge_failed_are_not_missed(table, settings, ids, monkeypatch, rows):
    """Boards that wait for these members would not be looked up."""
    monkeypatch.setattr(module, "RECENT_ROWS", 0)
    monkeypatch.setattr(module, "TAIL_ROWS", 2)
    table.load()
    send(settings, ids, (9, "a level of changes", NOON))
    table.refresh()

    def fails(levels):
        raise RuntimeError("executors are gone")

    send(settings, ids, *((n, f"v{n}", NOON) for n in range(rows)))
    with monkeypatch.context() as patched:
        patched.setattr(table, "_merged", fails)
        with pytest.raises(RuntimeError):
            table.refresh()
    assert table.refresh() is None
    assert names(table, ids) == {n: f"v{n}" for n in range(rows)} | {9: "a level of changes"}
    assert table.refresh() == []
    send(settings, ids, (5, "one", NOON))
    assert table.refresh() == [ids[5]]


def test_a_level_that_cannot_be_computed_is_not_persisted(table, spark):
    level = spark.range(3).select(F.expr("raise_error('executors are gone')"))
    with pytest.raises(PySparkException):
        table._kept(level)
    assert level.storageLevel == StorageLevel.NONE


@pytest.mark.parametrize("shifted", [0, 3], ids=["as many records", "more records"])
def test_a_topic_made_again_is_noticed_whatever_its_offsets_add_up_to(spark, settings, kafka, shifted):
    log = TopicLog(kafka.bootstrap_servers)
    log.make("member")
    log.send("member", 0, 5)
    servers = KafkaConnection(kafka.bootstrap_servers)
    tail = TopicTail(servers, "member")
    table = TableState(spark, log.offsets, tail, PIPELINE, DriverState(), [].extend, 1 << 20, 2)
    try:
        table.load()
        assert table.refresh() == []
        table.check_topic()
        log.make("member")
        log.send("member", 1, 5 + shifted)
        with pytest.raises(TableReplaced):
            table.refresh()
        log.send("member", 0, 6)  # now no offset shows it
        with pytest.raises(TableReplaced):
            table.check_topic()
    finally:
        table.close()
        log.remove("member")
        create_topics(settings.kafka)
