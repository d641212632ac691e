"""The metrics of the batch layer on a real database, read as role integrity."""

import datetime as dt

import pytest
from prometheus_client.parser import text_string_to_metric_families

from include.archive.catalogue import CONSUMER
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.integrity.pages.metrics import METRICS, BatchMetrics
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import build, row


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "metrics", tmp_path)


def samples(settings):
    metrics = BatchMetrics([settings.pipeline.name], lambda _: settings, dict)
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name != "pipeline")): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def ledger(settings, consumer, next_offset):
    rows(
        settings,
        "INSERT INTO offset_ledger (consumer, topic, topic_id, partition, next_offset) VALUES (%s, 'board', 't', 0, %s)"
        " ON CONFLICT (consumer, topic_id, partition) DO UPDATE SET next_offset = excluded.next_offset",
        (consumer, next_offset),
    )


def test_an_empty_database_has_values(settings):
    found = samples(settings)
    assert (found["batch_database_up",], found["batch_rows",], found["batch_days_overdue",]) == (1, 0, 0)
    assert found["batch_archive_lag_seconds",] == 0


def test_a_published_day_its_alerts_and_the_archive(settings):
    day = Day.of(SystemClock().now(), settings.timezone).before(2)
    build(settings, [row(each, each, day=day.date) for each in (1, 2)], cut=9, run_id="r", day=day)
    publish(settings, day, "r")
    rows(
        settings,
        "INSERT INTO alert (name, subject, severity, message, runbook, since, closed_at) VALUES"
        " ('day_held', 'a', 'warning', '', '', now(), NULL), ('day_held', 'b', 'warning', '', '', now(), now())",
    )
    ledger(settings, "join", 30)
    ledger(settings, CONSUMER, 10)
    rows(
        settings,
        "INSERT INTO archive_batch (run_id, topic, topic_id, starts, ends, newest, record_count, taken_at)"
        " VALUES ('r', 'board', 't', '{}', '{}', '{}', 10, %s)",
        (SystemClock().now() - dt.timedelta(hours=2),),
    )
    found = samples(settings)
    assert (found["batch_days", "rebuilt"], found["batch_rows",], found["batch_generations", "published"]) == (1, 2, 1)
    assert found["batch_days_overdue",] == 1
    assert found["batch_alerts_open", "day_held", "warning"] == 1
    assert found["batch_archive_lag_records",] == 20
    assert found["batch_archive_lag_seconds",] >= 7200
    assert {metric.series for metric in METRICS} - {name for name, *_ in found} == {
        *("batch_last_night_published", "batch_last_night_certified"),  # nothing is known of yesterday
        *("batch_last_certificate_timestamp_seconds", "batch_late_records"),
        "batch_airflow_heartbeat_timestamp_seconds",  # Airflow does not run
    }
    ledger(settings, CONSUMER, 30)
    assert samples(settings)["batch_archive_lag_seconds",] == 0
