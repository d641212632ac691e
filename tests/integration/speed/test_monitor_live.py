"""Health, progress and metrics of the speed layer, on a real PostgreSQL, a real broker and real streaming queries."""

import datetime as dt
import json
import os
import subprocess
import threading
import urllib.error
import urllib.request

import psycopg2
import pytest
from confluent_kafka import Producer

from include.contracts.errors import ContractMismatch, DatabaseUnavailable, DriverSuperseded
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database import stream_progress
from include.database.offset_ledger import OffsetLedger
from include.database.sessions import SessionLimits
from include.database.stream_progress import Pending, Progress, StreamProgressStore
from include.integrity.days.catch_up import wait_until_caught_up
from include.kafka.offsets import OffsetReader
from spark_jobs.connectors.kafka import stream_reader
from spark_jobs.speed.health import report
from spark_jobs.speed.health.monitor import Monitor
from spark_jobs.speed.health.state import Batch, DriverState, topics_of
from stack.layout import Layout
from stack.machine import find_java
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.driver import driver_context
from tests.support.pipeline import migrated, produce, rows, with_topics
from tests.support.topic_log import taken_lease

JOIN = Progress("join", "d1", 4, 7, 400, 250, 900, {"board": {"0": 500}}, 100.5, 1600.0, 50, 0.5, {"addBatch": 0.2},
                {"sent": 900}, None)  # fmt: skip
SERVE = Progress("serve", "d1", 4, None, 0, None, 0, None, None, None, None, None, None, None, "DatabaseUnavailable: x")
CONNECTIONS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'stream-progress' AND datname = current_database()"
)
TOPICS = topics_of(PIPELINE)
LOCK = "LOCK TABLE stream_progress IN ACCESS EXCLUSIVE MODE"


class TestStore:
    @pytest.fixture
    def settings(self, postgres, tmp_path):
        return migrated(None, postgres, "monitor_store", tmp_path)

    @pytest.fixture
    def store(self, settings):
        store = StreamProgressStore(settings.database, lease=taken_lease(settings))
        yield store
        store.close()

    def connections(self, postgres):
        """The pids of the store's backends."""
        connection = psycopg2.connect(postgres.superuser_dsn("monitor_store"))
        try:
            with connection.cursor() as cursor:
                cursor.execute(CONNECTIONS)
                return [row[0] for row in cursor.fetchall()]
        finally:
            connection.close()

    def as_superuser(self, postgres, statement, *parameters, database="monitor_store"):
        connection = psycopg2.connect(postgres.superuser_dsn(database))
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters)
        finally:
            connection.close()

    def test_a_row_a_query_that_the_batch_role_reads(self, settings, store):
        store.save([SERVE, JOIN])
        reader = StreamProgressStore(settings.database, "batch")
        try:
            seen = reader.read()
        finally:
            reader.close()
        assert [each.progress for each in seen] == [JOIN, SERVE]
        assert all(0 <= each.age_s < 60 for each in seen)

    def test_saves_again_over_the_one_connection_it_has(self, store, postgres):
        store.save([JOIN])
        first = self.connections(postgres)
        for batch_id in range(20):
            store.save([JOIN._replace(batch_id=batch_id)])
        store.count_pending()
        assert len(first) == 1
        assert self.connections(postgres) == first
        assert [each.progress.batch_id for each in store.read()] == [19]

    def test_offsets_once_known_stay(self, store):
        store.save([JOIN])
        store.save([JOIN._replace(offsets=None, driver_id="d2", epoch=5)])
        assert store.read()[0].progress == JOIN._replace(driver_id="d2", epoch=5)

    def test_a_driver_that_was_superseded_leaves_its_successors_rows(self, settings, store):
        store.save([JOIN])
        taken_lease(settings)
        with pytest.raises(DriverSuperseded):
            store.save([JOIN._replace(batch_id=8)])
        assert store.read()[0].progress == JOIN

    def test_connects_again_after_its_backend_was_terminated(self, store, postgres):
        store.save([JOIN])
        self.as_superuser(postgres, "SELECT pg_terminate_backend(%s)", *self.connections(postgres))
        with pytest.raises(DatabaseUnavailable):
            store.save([JOIN._replace(batch_id=8)])
        store.save([JOIN._replace(batch_id=9)])
        assert store.read()[0].progress.batch_id == 9

    def test_a_table_that_is_locked_does_not_hold_it_for_ever(self, settings, postgres, monkeypatch):
        monkeypatch.setattr(stream_progress, "LIMITS", SessionLimits(lock_s=0.1))
        store = StreamProgressStore(settings.database, lease=taken_lease(settings))
        store.save([JOIN])
        other = psycopg2.connect(postgres.superuser_dsn("monitor_store"))
        try:
            with other.cursor() as cursor:
                cursor.execute(LOCK)
            with pytest.raises(DatabaseUnavailable):
                store.save([JOIN._replace(batch_id=8)])
            other.close()
            store.save([JOIN._replace(batch_id=9)])
            assert store.read()[0].progress.batch_id == 9
        finally:
            other.close()
            store.close()

    def test_a_database_that_takes_no_writes_is_out(self, store, postgres):
        setting = "ALTER DATABASE monitor_store SET default_transaction_read_only = "
        self.as_superuser(postgres, setting + "on", database="postgres")
        with pytest.raises(DatabaseUnavailable):
            store.save([JOIN])
        self.as_superuser(postgres, setting + "off", database="postgres")
        store.save([JOIN])
        assert len(store.read()) == 1

    def test_tables_of_another_version_are_named(self, store, postgres):
        self.as_superuser(postgres, "ALTER TABLE stream_progress DROP COLUMN lag_s CASCADE")
        with pytest.raises(ContractMismatch, match="run the migrations"):
            store.save([JOIN])
        with pytest.raises(ContractMismatch):
            store.read()
        assert store.count_pending() == Pending(0, 0.0)

    def test_pending_boards_are_counted_with_the_age_of_the_first(self, store, postgres):
        self.as_superuser(
            postgres,
            'INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value, kafka_timestamp,'
            " version_at, pending_since, sent_at) SELECT 'board', 0, n, n, 9, '2026-11-20', '', now(), now(),"
            " now() - n * interval '1 hour', CASE n WHEN 3 THEN now() END FROM generate_series(1, 3) AS n",
        )
        pending = store.count_pending()
        assert pending.keys == 3  # one that was sent waits until it is served
        assert 3 * 3600 <= pending.oldest_s < 3 * 3600 + 60


class Gate:
    """A batch function that works until it is closed, as one that waits for a server."""

    def __init__(self, query, topic, state):
        self.open = threading.Event()
        self.open.set()
        self._query, self._topic, self._state = query, topic, state

    def process(self, records, batch_id):
        found = records.groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
        note = self._state.waiting_callback(self._query)
        while not self.open.wait(0.1):
            note(DatabaseUnavailable(host="gate"))
        note(None)
        self._state.record_batch(
            self._query, Batch(batch_id, sum(row["count(1)"] for row in found), {"write": 0.1}, None)
        )
        self._state.set_position(self._topic, {row["partition"]: row["max(offset)"] + 1 for row in found})


class Followed:
    """Both queries over their topics, and a monitor that follows them, on a PostgreSQL that may go."""

    def __init__(self, session, settings, folder):
        self.settings = settings
        self._session, self._folder = session, folder
        self.state = DriverState()
        self._offset_reader = OffsetReader(settings.kafka.connection)
        self._lease = taken_lease(settings)
        self._store = StreamProgressStore(settings.database, lease=self._lease)
        context = driver_context(settings, state=self.state, offset_reader=self._offset_reader, lease=self._lease)
        self.monitor = Monitor(context, self._store, TOPICS, "member", ("127.0.0.1", 0))
        self.gates, self.queries = {}, []
        self.port = self.monitor.open()
        self.monitor.load()
        self._ended = threading.Event()

    def start(self):
        for name, topic in (("join", PIPELINE.stream.name), ("serve", PIPELINE.output.name)):
            start = self._offset_reader.ends(topic)
            self.state.set_position(topic, start)
            gate = self.gates[name] = Gate(name, topic, self.state)
            reader = stream_reader(self._session, self.settings.kafka.connection, topic, start, 1000)
            writer = reader.load().writeStream.queryName(name).foreachBatch(gate.process)
            writer = writer.option("checkpointLocation", str(self._folder / name)).trigger(processingTime="0.2 seconds")
            self.queries.append(writer.start())
        self.monitor.start(dict(zip(("join", "serve"), self.queries, strict=True)))
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self):
        """The driver's main loop."""
        while not self._ended.wait(1):
            self.monitor.tick()

    def stop(self):
        self._ended.set()
        for gate in self.gates.values():
            gate.open.set()
        for query in self.queries:
            query.stop()
        self.monitor.stop()
        self._store.close()

    def health(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=10) as answer:
                return answer.status, json.load(answer)["reason"]
        except urllib.error.HTTPError as exc:
            return exc.code, json.load(exc)["reason"]

    def metric(self, line):
        """The value of a metric as Prometheus reads it; None when it is not there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            found = [text.rpartition(" ")[2] for text in answer.read().decode().splitlines() if text.startswith(line)]
        return float(found[0]) if found else None

    def shows(self, query, condition):
        """True if the query's row fulfils the condition."""
        found = rows(self.settings, f"SELECT {condition} FROM stream_progress WHERE query = %s", (query,))
        return found == [(True,)]

    def wait(self, query, condition, deadline_s=30):
        wait_until(lambda: self.shows(query, condition), deadline_s, f"{query}: {condition}")


def heartbeat(settings):
    return rows(settings, "SELECT max(heartbeat_at) FROM stream_progress")[0][0]


@pytest.fixture
def followed(spark, kafka, own_postgres, tmp_path, monkeypatch):
    # a rate is still shown when another one is known
    monkeypatch.setattr("spark_jobs.speed.health.lag.WINDOW", dt.timedelta(minutes=5))
    settings = with_topics(kafka, own_postgres, "monitor_live", tmp_path)
    followed = Followed(spark, settings, tmp_path)
    yield followed
    followed.stop()


def test_shows_the_queries_through_a_wait_an_outage_and_an_end(followed, own_postgres):
    settings, metric = followed.settings, followed.metric
    assert followed.health() == (503, "starting: loading the table")
    followed.wait("join", "waiting_for LIKE 'loading the table, since %%'")

    followed.start()
    wait_until(lambda: followed.health() == (200, None), 10, "healthy")
    produce(settings, [("board", n, board(n, 1)) for n in range(20)])
    followed.wait("join", "total_rows = 20 AND lag_records = 0 AND lag_s = 0 AND waiting_for IS NULL")
    followed.wait("join", "input_rate > 0 AND processed_rate > 0 AND phases ? 'addBatch' AND phases ? 'write'")
    assert metric('stream_input_rows_total{query="join"}') == 20
    assert metric('stream_batch_phase_seconds{phase="addBatch",query="join"}') > 0

    # a query that waits: its lag grows while its batch has not come to an end
    followed.gates["join"].open.clear()
    produce(settings, [("board", n, board(n, 1)) for n in range(5)])
    followed.wait("join", "lag_records = 5 AND lag_s > 0")
    produce(settings, [("board", n, board(n, 1)) for n in range(7)])
    followed.wait("join", "lag_records = 12 AND lag_s > 3")
    followed.wait("join", "waiting_for LIKE 'DatabaseUnavailable: PostgreSQL cannot be reached. (host=gate), since %%'")
    assert (metric('stream_waiting{query="join"}'), metric('stream_waiting{query="serve"}')) == (1, 0)
    assert metric('stream_lag_records{query="serve",topic="board-detail"}') == 0

    # PostgreSQL goes: HTTP shows everything, and the table as soon as it is back
    own_postgres.stop()
    produce(settings, [("board", n, board(n, 1)) for n in range(3)])
    wait_until(lambda: metric('stream_lag_records{query="join",topic="board"}') == 15, 15, "fifteen wait")
    wait_until(lambda: metric("stream_pending_keys") is None, 15, "how many boards wait is not known")
    assert metric('stream_query_active{query="join"}') == 1
    own_postgres.start()
    followed.wait("join", "lag_records = 15")
    stood_at = heartbeat(settings)
    wait_until(lambda: heartbeat(settings) > stood_at, 30, "the heartbeat goes on")
    wait_until(lambda: metric("stream_pending_keys") == 0, 15, "the boards that wait are counted again")
    followed.gates["join"].open.set()
    followed.wait("join", "total_rows = 35 AND lag_records = 0 AND waiting_for IS NULL")

    followed.queries[1].stop()
    wait_until(lambda: followed.health() == (503, "query serve has ended"), 15, "the end is seen")
    followed.wait("serve", "waiting_for = 'nothing: the query has ended'")


def test_a_marker_of_a_transaction_is_no_row(followed):
    """Fifty transactions have a record each and a marker, and fifty are aborted: two markers and two records a pair."""
    kafka = followed.settings.kafka.connection
    followed.start()
    producer = Producer({**kafka.librdkafka(), "transactional.id": "in-transactions"})
    producer.init_transactions(30)
    followed.gates["join"].open.clear()
    for number in range(100):
        producer.begin_transaction()
        producer.produce("board", b"{}", key=b"1")
        producer.flush(30)
        (producer.commit_transaction if number % 2 else producer.abort_transaction)(30)
    followed.gates["join"].open.set()
    followed.wait("join", "total_rows = 50")
    followed.wait("join", "input_rows BETWEEN 1 AND 50 AND processed_rate > 0")


def test_the_speed_layer_is_caught_up_when_both_ledgers_are_at_the_ends(kafka, postgres, tmp_path):
    settings = with_topics(kafka, postgres, "monitor_caught_up", tmp_path)
    offset_reader, ledger = OffsetReader(settings.kafka.connection), OffsetLedger(settings.database)
    boards, details = PIPELINE.stream.name, PIPELINE.output.name
    produce(settings, [("board", 1, board(1, 1)), ("board-detail", 1, {"boardId": 1})])
    one_short = dict(offset_reader.ends(details))
    partition = next(p for p, end in one_short.items() if end)
    one_short[partition] -= 1

    lag = wait_until_caught_up(settings, 0)
    assert (lag.is_caught_up, lag.join_lag) == (False, sum(offset_reader.ends(boards).values()))
    lease = taken_lease(settings)
    ledger.open("join", boards, offset_reader.topic_id(boards), offset_reader.ends(boards), lease)
    ledger.open("serve", details, offset_reader.topic_id(details), one_short, lease)
    lag = wait_until_caught_up(settings, 0)
    assert (lag.is_caught_up, lag.join_lag, lag.serve_lag) == (False, 0, 1)

    rows(settings, "UPDATE offset_ledger SET next_offset = next_offset + 1 WHERE consumer = 'serve' AND partition = %s",
         (partition,))  # fmt: skip
    assert wait_until_caught_up(settings, 0).is_caught_up
    produce(settings, [("board", 1, board(1, 1))])
    lag = wait_until_caught_up(settings, 0)
    assert (lag.is_caught_up, lag.join_lag, lag.serve_lag) == (False, 1, 0)


def test_an_accepted_event_behind_a_hung_transaction_is_not_caught_up_until_the_runbooks_command_ends_that(
    kafka, postgres, tmp_path, monkeypatch
):
    monkeypatch.setattr(report, "LONGEST_TRANSACTION_S", 1)
    settings = with_topics(kafka, postgres, "monitor_hung", tmp_path)
    servers, ledger = settings.kafka.connection, OffsetLedger(settings.database)
    offset_reader, lease, state = OffsetReader(servers), taken_lease(settings), DriverState()
    hung = Producer({**servers.librdkafka(), "transactional.id": "hung", "transaction.timeout.ms": 600_000})
    hung.init_transactions(30)
    hung.begin_transaction()
    hung.produce("board", b"{}", partition=0)
    assert hung.flush(30) == 0
    produce(settings, [("board", key, board(key, 1)) for key in range(20)])
    ends, high = offset_reader.ends("board"), offset_reader.high_watermarks("board")
    assert high[0] - ends[0] > 1
    for consumer, topic in (("join", "board"), ("serve", "board-detail")):
        ledger.open(consumer, topic, offset_reader.topic_id(topic), offset_reader.ends(topic), lease)
    assert wait_until_caught_up(settings, 0).join_lag == high[0] - ends[0]

    progress = StreamProgressStore(settings.database, lease=lease)
    context = driver_context(settings, state=state, offset_reader=offset_reader, lease=lease)
    monitor = Monitor(context, progress, TOPICS, "member", ("127.0.0.1", 0))

    def reason():
        monitor.tick()  # as the main loop does
        return monitor.view().unhealthy_reason() or ""

    monitor.open()
    try:
        monitor.start({"join": Running("join"), "serve": Running("serve")})
        state.set_position("board", ends)
        begins = f"a transaction is open in topic board, partition 0, offset {ends[0]}, for "
        wait_until(lambda: reason().startswith(begins), 30, "told")
        assert monitor.view().queries[0].lag.records == 0

        command = [find_java(os.environ) / "bin" / "java", "-cp", f"{Layout.of().kafka_jars}/*",
                   "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", servers.bootstrap_servers,
                   "abort", "--topic", "board", "--partition", "0", "--start-offset", str(ends[0])]  # fmt: skip
        ended = subprocess.run(command, text=True, capture_output=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        wait_until(lambda: reason() == "", 30, "it ended")
        wait_until(lambda: monitor.view().queries[0].lag.records > 0, 30, "and what it held waits to be taken")
    finally:
        monitor.stop()


class Running:
    """A query that has nothing to do."""

    isActive, lastProgress = True, None  # noqa: N815  Spark's names

    def __init__(self, name):
        self.name = name
