"""The metrics of the batch layer: each value, a pipeline that cannot be read, and who may read them."""

import dataclasses
import datetime as dt

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from include.contracts.errors import ConfigurationError, DatabaseUnavailable
from include.integrity.days.day_status import DayStatus
from include.integrity.days.due_days import Window
from include.integrity.pages.metrics import BatchMetrics, BatchState, create_metrics_app
from include.runtime.settings import AlertSettings

NOW = dt.datetime(2026, 11, 24, 3, tzinfo=dt.UTC)  # 12:00 in Seoul
TODAY = dt.date(2026, 11, 24)


def hours_ago(hours):
    return NOW - dt.timedelta(hours=hours)


def day(before, **changes):
    certified = DayStatus(
        TODAY - dt.timedelta(days=before), "certified", 100, 1, 2, 3, 0, 7, hours_ago(8), hours_ago(7), {"late": 4}
    )
    return dataclasses.replace(certified, **changes)


HEALTHY = BatchState(
    AlertSettings(), Window(NOW, "Asia/Seoul", 14), [day(1), day(2)], {"published": 2}, {}, 50, hours_ago(8)
)


def values(*states, read=None, pipelines=("p",), heartbeats=None):
    """(name without batch_, label values) → value, of the pipelines with these states."""
    left = iter(states)
    metrics = BatchMetrics(pipelines, lambda name: name, lambda: heartbeats or {}, read or (lambda _: next(left)))
    return {
        (sample.name.removeprefix("batch_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def changed(**changes):
    return values(dataclasses.replace(HEALTHY, **changes))


def test_days_are_counted_and_summed():
    days = [
        day(0, status="provisional", generation_id=None, published_at=None, certified_at=None, corrections={}),
        day(1, status="rebuilt", certified_at=None, dirty_count=5, dirty={"late board": 5}, duplicate_count=6),
        day(2, held_reason="wrong", corrections={"late": 1, "unexplained": 2}),
    ]
    found = changed(days=days)
    assert [found["days", "p", status] for status in ("provisional", "rebuilt", "certified")] == [1, 1, 1]
    assert {name: found[name, "p"] for name in ("days_dirty", "days_held", "rows", "duplicate_records")} == {
        "days_dirty": 1, "days_held": 1, "rows": 300, "duplicate_records": 6,
    }  # fmt: skip
    assert (found["corrections", "late", "p"], found["corrections", "unexplained", "p"]) == (5, 2)
    assert found["late_records", "late board", "p"] == 5
    assert found["last_certificate_timestamp_seconds", "p"] == hours_ago(7).timestamp()


@pytest.mark.parametrize(
    ("yesterday", "published", "certified"),
    [
        (day(1), 1, 1),
        (day(1, status="rebuilt"), 1, 0),
        (day(1, status="provisional", generation_id=None), 0, 0),
        (day(2), None, None),
    ],
)
def test_the_last_night_is_of_yesterday(yesterday, published, certified):
    found = changed(days=[day(0, status="provisional", generation_id=None), yesterday])
    assert (found.get(("last_night_published", "p")), found.get(("last_night_certified", "p"))) == (
        published,
        certified,
    )


@pytest.mark.parametrize(
    ("hour", "changes", "overdue"),
    [
        (8, {"status": "rebuilt"}, 0),
        (9, {"status": "rebuilt"}, 1),
        (9, {"status": "provisional", "generation_id": None}, 1),  # no night ran: the stream alone opened the day
        (9, {"status": "rebuilt", "held_reason": "wrong"}, 0),
        (9, {}, 0),
    ],
)
def test_a_day_is_overdue_by_a_time_of_the_morning_whether_or_not_a_night_ran(hour, changes, overdue):
    now = dt.datetime.combine(TODAY, dt.time(hour), dt.timezone(dt.timedelta(hours=9)))
    found = changed(window=Window(now, "Asia/Seoul", 14), days=[day(1, **changes)])
    assert found["days_overdue", "p"] == overdue


def test_days_that_soon_cannot_be_rebuilt():
    assert changed(days=[day(11, dirty_count=1), day(10, dirty_count=1)])["days_expiring", "p"] == 1


def test_days_that_can_no_longer_be_rebuilt_until_somebody_acknowledges_them():
    lost = [day(14, dirty_count=1), day(15, status="rebuilt"), day(16)]
    assert changed(days=lost)["days_lost", "p"] == 2
    assert changed(days=[dataclasses.replace(one, acknowledged_by="mina") for one in lost])["days_lost", "p"] == 0


def test_the_lag_of_the_archive_is_time_in_which_it_took_nothing_although_there_was_something():
    assert changed()["archive_lag_seconds", "p"] == 8 * 3600
    assert changed(unarchived=0)["archive_lag_seconds", "p"] == 0
    assert ("archive_lag_seconds", "p") not in changed(archived_at=None)
    assert changed(archived_at=None)["archive_lag_records", "p"] == 50


def test_every_alert_of_watch_and_audits_has_a_value_and_open_ones_are_counted():
    found = changed(alerts={("day_held", "warning"): 2, ("of another version", "critical"): 1})
    assert found["alerts_open", "day_held", "p", "warning"] == 2
    assert found["alerts_open", "of another version", "p", "critical"] == 1
    assert found["alerts_open", "topic_drift", "p", "warning"] == 0
    assert sum(value for (name, *_), value in found.items() if name == "alerts_open") == 3


@pytest.mark.parametrize("error", [DatabaseUnavailable(host="db"), ConfigurationError("X=1: wrong")])
def test_a_pipeline_that_cannot_be_read_hides_no_other(error, caplog):
    def read(name):
        if name == "p":
            raise error
        return HEALTHY

    found = values(read=read, pipelines=("p", "q"), heartbeats={"scheduler": NOW})
    assert (found["database_up", "p"], found["database_up", "q"]) == (0, 1)
    assert not [key for key in found if "p" in key and key[0] != "database_up"]
    assert found["rows", "q"] == 200
    assert found["airflow_heartbeat_timestamp_seconds", "scheduler"] == NOW.timestamp()
    assert str(error) in caplog.text


def test_a_page_reads_each_pipeline_once():
    asked = []
    values(read=lambda name: asked.append(name) or HEALTHY, pipelines=("p", "q"))
    assert asked == ["p", "q"]


class TestAccess:
    def get(self, sent, token="secret"):
        headers = {"Authorization": sent} if sent is not None else {}
        return TestClient(create_metrics_app(lambda: token, lambda: b"x 1\n")).get("/metrics", headers=headers)

    def test_the_token_opens(self):
        answer = self.get("Bearer secret")
        assert (answer.status_code, answer.text) == (200, "x 1\n")
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert answer.headers["Cache-Control"] == "no-store"

    @pytest.mark.parametrize("sent", [None, "", "Bearer", "Bearer ", "Bearer secre", "Basic secret", "secret"])
    def test_nothing_else_does(self, sent):
        answer = self.get(sent)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")

    def test_without_a_token_it_is_closed_to_all(self):
        answer = self.get("Bearer ", token="")
        assert answer.status_code == 503
        assert "METRICS_TOKEN is not set; set it in .env" in answer.text

    def test_a_wrong_setting_is_logged_and_not_answered(self, caplog):
        def read_token():
            raise ConfigurationError("DATABASE_HOST='a b': not a host")

        answer = TestClient(create_metrics_app(read_token, bytes)).get("/metrics")
        assert answer.status_code == 503
        assert "DATABASE_HOST" in caplog.text
        assert "DATABASE_HOST" not in answer.text

    def test_there_are_no_other_pages(self):
        client = TestClient(create_metrics_app(lambda: "secret", bytes))
        assert {client.get(path).status_code for path in ("/", "/docs", "/openapi.json", "/redoc")} == {404}
