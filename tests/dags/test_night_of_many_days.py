"""A night with many days: how often it starts Spark, in which order, and who builds what, on a real PostgreSQL.

In the place of spark-submit is a job that builds rows, as the Spark job does, for the arguments that it is given.
"""

import argparse
import datetime as dt
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import MissingRange
from include.database.generation_store import GenerationStore
from tests.dags.rendering import REQUEST, rendered
from tests.support.pipeline import environment, migrated, rows
from tests.support.publication import publish
from tests.support.serving import build, row

DATABASE = "night_of_many_days"
NIGHT = "a-run"  # the id of each run that `rendered` makes
STATUSES = "SELECT run_id, status FROM generation WHERE day = %s ORDER BY id"


class Night:
    """Runs the tasks of a night that build days, and those of the runs that it starts."""

    def __init__(self, dag_bag, settings, monkeypatch):
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        self.dags, self.settings = dag_bag.dags, settings
        self.submitted = []  # the days of each Spark application that was started
        self.broken, self.deadly, self.seconds = set(), set(), []
        self.started_at = dt.datetime.now(dt.UTC)
        monkeypatch.setattr(SparkSubmitHook, "submit", lambda hook, application, **_: self.job(hook, application))

    def job(self, hook, application):
        parser = argparse.ArgumentParser()
        for name in ("--day", "--days", "--run-id", "--reason", "--source", "--seconds"):
            parser.add_argument(name)
        given = parser.parse_args(hook._application_args)
        days = (given.days or given.day).split(",")
        self.submitted.append(days)
        if Path(application).name == "rebuild_day.py":
            self.build(Day.parse(*days, "Asia/Seoul"), given.run_id)
            return
        from spark_jobs.rebuild_days import build_days

        self.seconds.append(float(given.seconds))
        begun = GenerationStore(self.settings.database).begun_days(given.run_id)
        build_days([Day.parse(day, "Asia/Seoul") for day in days], begun, lambda day: self.build(day, given.run_id),
                   lambda: True)  # fmt: skip

    def build(self, day, run_id):
        from airflow.sdk.exceptions import AirflowException

        GenerationStore(self.settings.database).count_attempt(day, run_id)
        if str(day) in self.deadly:
            raise SystemExit("the JVM has died")
        if str(day) in self.broken:
            raise MissingRange(day=day) if run_id == NIGHT else AirflowException("Error code is: 78.")
        noon = day.start + dt.timedelta(hours=12)
        board = row(day.date.toordinal(), 0, day=day.date, created_at=noon, modified_at=noon, kafka_timestamp=noon)
        build(self.settings, [board], cut=1, run_id=run_id, day=day)

    def context(self, task, **run):
        extra = REQUEST | {"night_started_at": self.started_at.isoformat(), "built_by": NIGHT}
        event = SimpleNamespace(timestamp=self.started_at, extra=extra)
        return {
            "task": task, "ti": SimpleNamespace(try_number=1), "triggering_asset_events": {"asset": [event]},
            "dag_run": SimpleNamespace(start_date=self.started_at, clear_number=0, run_type="scheduled", **run),
        }  # fmt: skip

    def together(self, days):
        """Run the task of the night that builds days, if it has one."""
        dag = self.dags["nightly_rebuild"]
        if "rebuild_together" in dag.task_ids:
            task = rendered(dag.get_task("rebuild_together"), "scheduled", days=tuple(days))
            task.execute(self.context(task))

    def run(self, days):
        """The night and its runs; returns what became of `rebuild` of each day."""
        self.together(days)
        return {day: self.rebuild(day) for day in days}

    def rebuild(self, day, run_id=None, **run):
        from airflow.sdk.exceptions import AirflowException, AirflowSkipException

        task = rendered(self.dags["rebuild_day"].get_task("rebuild"), "asset_triggered", day=day)
        task.application_args[3] = run_id or f"run-of-{day}"
        context = self.context(task)
        context["dag_run"].clear_number = run.get("clear_number", 0)
        try:
            task.execute(context)
        except AirflowSkipException:
            return "skipped"
        except AirflowException:
            return "failed"
        return "success"

    def generations(self, day):
        return rows(self.settings, STATUSES, (day,))


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, DATABASE, tmp_path)


@pytest.fixture
def night(dag_bag, settings, postgres, tmp_path, monkeypatch):
    variables = environment(None, postgres, DATABASE, tmp_path) | {"AIRFLOW_CONN_SPARK_DEFAULT": "spark://local"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Night(dag_bag, settings, monkeypatch)


@pytest.fixture
def days(settings):
    yesterday = Day.of(SystemClock().now(), settings.timezone).before(1)
    return [str(yesterday.before(age)) for age in (3, 0, 40, 11, 2, 7, 1, 5)]


def test_a_night_of_many_days_starts_spark_once_and_each_day_is_built_by_its_own_run(night, days):
    assert night.run(days) == dict.fromkeys(days, "success")

    assert night.submitted == [days]  # one application, in the night's order
    for day in days:
        assert night.generations(day) == [(f"run-of-{day}", "built")]


def test_a_day_that_fails_costs_a_run_of_its_own_and_stops_no_other(night, days):
    night.broken = {days[2]}

    assert night.run(days) == dict.fromkeys(days, "success") | {days[2]: "failed"}
    assert night.submitted == [days, [days[2]]]


def test_a_day_that_ends_the_job_is_not_begun_by_its_retry(night, days):
    night.deadly = {days[2]}
    with pytest.raises(SystemExit):
        night.together(days)
    night.together(days)
    night.deadly = set()

    assert [night.rebuild(day) for day in days] == ["success"] * len(days)
    assert night.submitted == [days, days, [days[2]]]


def test_the_runs_build_the_days_when_the_night_could_not(night, days):
    assert [night.rebuild(day) for day in days] == ["success"] * len(days)
    assert night.submitted == [[day] for day in days]


@pytest.mark.parametrize("count", [0, 1])
def test_no_job_is_started_for_a_day_alone(night, days, count):
    night.together(days[:count])
    assert night.submitted == []


def test_the_job_ends_with_the_budget_of_the_night(night, days, monkeypatch):
    night.together(days)
    monkeypatch.setenv("NIGHT_BUDGET_S", "100")
    night.together(days)
    assert night.seconds[0] == 300
    assert 0 < night.seconds[1] <= 100

    night.started_at -= dt.timedelta(seconds=101)
    night.together(days)
    assert len(night.submitted) == 2


def test_a_day_that_the_night_has_built_is_published_also_when_its_budget_is_spent(night, days, monkeypatch):
    night.broken = {days[0]}
    night.together(days)
    monkeypatch.setenv("NIGHT_BUDGET_S", "100")
    night.started_at -= dt.timedelta(seconds=101)

    assert {day: night.rebuild(day) for day in days} == dict.fromkeys(days, "success") | {days[0]: "skipped"}


def test_a_task_that_a_person_clears_builds_its_day_again(night, days):
    night.together(days)
    assert night.rebuild(days[0], clear_number=1) == "success"
    assert night.submitted == [days, [days[0]]]


def test_a_build_is_taken_over_once(night, days):
    night.together(days)
    assert [night.rebuild(days[0], run_id=run) for run in ("first", "second")] == ["success", "success"]
    assert night.generations(days[0]) == [("first", "built"), ("second", "built")]


def test_a_build_is_not_taken_over_if_the_day_shows_something_else_since(night, days):
    night.together(days)
    day = Day.parse(days[0], "Asia/Seoul")
    night.build(day, "of-a-person")
    publish(night.settings, day, "of-a-person")

    assert night.rebuild(days[0]) == "success"
    assert night.submitted == [days, [days[0]]]


def test_an_event_that_was_sent_to_the_api_takes_no_build_over(night, days):
    night.together(days)
    context = night.context

    def sent(task, **run):
        made = context(task, **run)
        made["triggering_asset_events"]["asset"][0].extra["from_rest_api"] = True
        return made

    night.context = sent
    assert night.rebuild(days[0]) == "success"
    assert night.submitted == [days, [days[0]]]
