"""The view of the driver at one instant: health, rows for PostgreSQL, metrics."""

import dataclasses
import datetime as dt
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from include.database.stream_progress import Pending
from include.runtime.metrics import metrics_page
from spark_jobs.speed.health.lag import Lag, SparkBatch
from spark_jobs.speed.health.report import METRICS, DriverView, QueryView
from spark_jobs.speed.health.state import Batch, Count, Done, TableSize

NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


def ago(seconds):
    return NOW - dt.timedelta(seconds=seconds)


JOIN = QueryView(
    query="join",
    topic="board",
    is_active=True,
    spark_batch=SparkBatch(7, 400, 0.25, {"addBatch": 0.2, "triggerExecution": 0.25}),
    batch=Batch(7, 400, {"send": 0.15}, ago(1)),
    done=Done(3, 900, ago(2)),
    position={0: 500, 1: 400},
    input_rate=100.5,
    processed_rate=1600.0,
    lag=Lag(50, 0.5),
    ends_seen_at=ago(1),
)
SERVE = QueryView(query="serve", topic="board-detail", is_active=True, ends_seen_at=ago(1), lag=Lag(0, 0.0))


def driver(join=JOIN, serve=SERVE, **changes):
    fields = {
        "driver_id": "d1",
        "epoch": 4,
        "at": NOW,
        "started_at": ago(600),
        "last_loop_at": ago(1),
        "starting": None,
        "queries": (join, serve),
        "table_topic": "member",
        "table": TableSize(442_000, 17, 1 << 20, 2 << 20),
        "table_lag": Lag(2, 1.5),
        "pending": Pending(3, 60.0),
        "counts": {"sent": 900, "rejects": 1},
    }
    return DriverView(**(fields | changes))


def test_help_of_the_metrics_names_no_topic_of_one_pipeline():
    texts = {metric.text for metric in METRICS}
    assert "Records sent to the output topic and acknowledged." in texts
    assert not [text for text in texts if "board" in text.lower() or "member" in text.lower()]


def changed(query, **changes):
    return dataclasses.replace(query, **changes)


def metrics(view):
    """(name, label values in the order of the labels' names) → value."""
    page = metrics_page("stream", METRICS, view).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


class TestHealth:
    def test_healthy(self):
        assert driver().unhealthy_reason() is None

    @pytest.mark.parametrize(
        ("view", "reason"),
        [
            (driver(starting="loading the table"), "starting: loading the table"),
            (driver(starting="loading", join=changed(JOIN, waits=("BrokerUnavailable: x", ago(1)))),
             "starting: BrokerUnavailable: x, since 2026-11-20T11:59:59.000Z"),
            (driver(serve=changed(SERVE, is_active=False)), "query serve has ended"),
            (driver(serve=changed(SERVE, is_active=None)), "query serve has ended"),
            (driver(join=changed(JOIN, waits=("BrokerUnavailable: x", ago(31)))),
             "query join waits for BrokerUnavailable: x, since 2026-11-20T11:59:29.000Z"),
            (driver(last_loop_at=ago(61)), "the driver's main loop is silent for 61 s"),
            (driver(join=changed(JOIN, ends_seen_at=ago(31))),
             "Kafka has not returned the end offsets of topic board for 30 s"),
            (driver(serve=changed(SERVE, ends_seen_at=None)),
             "Kafka has not returned the end offsets of topic board-detail for 30 s"),
        ],
    )  # fmt: skip
    def test_says_why_not(self, view, reason):
        assert view.unhealthy_reason() == reason

    def test_a_short_wait_is_healthy(self):
        assert driver(join=changed(JOIN, waits=("BrokerUnavailable: x", ago(29)))).unhealthy_reason() is None

    def test_an_end_not_known_yet_is_none_right_after_the_start(self):
        assert driver(join=changed(JOIN, ends_seen_at=None), started_at=ago(5)).unhealthy_reason() is None


class TestProgress:
    def test_holds_what_is_known(self):
        row = driver().progress()[0]
        assert (row.query, row.driver_id, row.epoch, row.batch_id) == ("join", "d1", 4, 7)
        assert (row.input_rows, row.duration_ms, row.total_rows) == (400, 250, 900)
        assert row.offsets == {"board": {"0": 500, "1": 400}}
        assert (row.input_rate, row.processed_rate, row.lag_records, row.lag_s) == (100.5, 1600.0, 50, 0.5)
        assert row.phases == {"addBatch": 0.2, "triggerExecution": 0.25, "send": 0.15}
        assert row.metrics == {
            "sent": 900, "rejects": 1, "pending": 3, "pending_oldest_s": 60.0, "table_rows": 442_000,
            "table_changes": 17, "table_memory_bytes": 1 << 20, "table_disk_bytes": 2 << 20, "table_lag_records": 2,
        }  # fmt: skip
        assert row.waiting_for is None

    def test_what_is_not_known_is_none_and_not_zero(self):
        row = driver(serve=QueryView("serve", "board-detail"), pending=None, table_lag=None).progress()[1]
        assert (row.batch_id, row.duration_ms, row.offsets, row.lag_records, row.lag_s) == (None,) * 5
        assert {"pending", "table_lag_records"}.isdisjoint(row.metrics)

    @pytest.mark.parametrize(
        ("view", "text"),
        [
            (driver(starting="loading the table"), "loading the table, since 2026-11-20T11:50:00.000Z"),
            (driver(starting="loading", join=changed(JOIN, waits=("BrokerUnavailable: x", ago(1)))),
             "BrokerUnavailable: x, since 2026-11-20T11:59:59.000Z"),
            (driver(join=changed(JOIN, is_active=False)), "nothing: the query has ended"),
            (driver(join=changed(JOIN, waits=("DatabaseUnavailable: x", ago(60)))),
             "DatabaseUnavailable: x, since 2026-11-20T11:59:00.000Z"),
        ],
    )  # fmt: skip
    def test_says_what_is_waited_for_and_since_when(self, view, text):
        assert view.progress()[0].waiting_for == text


class TestMetrics:
    def test_figures_of_queries_and_topics(self):
        found = metrics(driver(join=changed(JOIN, waits=("x", ago(5)))))
        assert found["stream_input_rows_total", "join"] == 900
        assert found["stream_batches_total", "join"] == 3
        assert found["stream_batch_duration_seconds", "join"] == 0.25
        assert found["stream_input_records_per_second", "join"] == 100.5
        assert found["stream_processed_records_per_second", "join"] == 1600
        assert found["stream_batch_phase_seconds", "addBatch", "join"] == 0.2
        assert found["stream_batch_phase_seconds", "send", "join"] == 0.15
        assert (found["stream_waiting", "join"], found["stream_waiting_seconds", "join"]) == (1, 5)
        assert (found["stream_waiting", "serve"], found["stream_waiting_seconds", "serve"]) == (0, 0)
        assert found["stream_last_batch_timestamp_seconds", "join"] == ago(2).timestamp()
        lags = {key[1:]: value for key, value in found.items() if key[0] == "stream_lag_records"}
        assert lags == {("join", "board"): 50, ("serve", "board-detail"): 0, ("join", "member"): 2}
        assert found["stream_lag_seconds", "join", "member"] == 1.5

    def test_figures_of_the_driver(self):
        found = metrics(driver())
        assert (found["stream_pending_keys",], found["stream_pending_oldest_seconds",]) == (3, 60)
        assert (found["stream_rejects_total",], found["stream_records_sent_total",]) == (1, 900)
        assert found["stream_duplicates_total",] == 0  # there from the start, else no increase from 0 is seen
        assert (found["stream_table_rows",], found["stream_table_changes",]) == (442_000, 17)
        assert (found["stream_table_memory_bytes",], found["stream_table_disk_bytes",]) == (
            1 << 20,
            2 << 20,
        )
        assert found["stream_heartbeat_timestamp_seconds",] == ago(1).timestamp()
        assert found["stream_driver_epoch",] == 4

    def test_every_count_is_served(self):
        counts = {name: number for number, name in enumerate(get_args(Count), 1_000_001)}
        assert set(counts.values()) <= set(metrics(driver(counts=counts)).values())

    def test_what_is_not_known_is_left_out(self):
        names = {(key[0], *key[1:2]) for key in metrics(driver(serve=QueryView("serve", "board-detail"), pending=None))}
        assert not {name for name in names if name[0].startswith("stream_pending_keys")}
        assert ("stream_lag_records", "join") in names
        assert ("stream_lag_records", "serve") not in names
        assert ("stream_batch_duration_seconds", "serve") not in names
