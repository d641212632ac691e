"""The days of a night in one Spark application: on real servers, by the command that Airflow submits."""

import datetime as dt
import os
import signal
import subprocess
import sys

import pytest

from include.contracts.clock import rfc3339
from include.contracts.day import Day
from include.contracts.errors import USAGE
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import GenerationStore
from spark_jobs.batch.rebuild import VersionPreload, rebuild_day
from spark_jobs.rebuild_days import build_days
from tests.fakes.events import board, member
from tests.support.pipeline import ROOT, environment, migrated, produce, rows, run_module
from tests.support.topic_log import TopicLog

LAST = Day.parse("2026-11-20", "Asia/Seoul")
DAYS = [LAST.before(age) for age in (2, 0, 1, 3)]
BUILT = "SELECT day, run_id, row_count, content_hash FROM generation WHERE status = 'built' ORDER BY id"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    log = TopicLog(kafka.bootstrap_servers)
    for topic in ("member", "board", "board-detail"):
        log.make(topic, 4)
    made = migrated(kafka, postgres, "rebuild_days", tmp_path)
    first = rfc3339(DAYS[-1].before(1).start)
    produce(made, [("member", 7, member(7, createdAt=first, modifiedAt=first))])
    for number, day in enumerate(DAYS):
        noon = rfc3339(day.start + dt.timedelta(hours=12))
        produce(made, [("board", id_, board(id_, createdAt=noon, modifiedAt=noon))
                       for id_ in range(10 * number, 10 * number + number + 1)])  # fmt: skip
    return made


@pytest.fixture
def variables(kafka, postgres, tmp_path):
    return environment(kafka, postgres, "rebuild_days", tmp_path)


def job(run_id, days=DAYS, seconds=600):
    return ["spark_jobs/rebuild_days.py", "--days", ",".join(map(str, days)), "--run-id", run_id, "--seconds",
            str(seconds)]  # fmt: skip


def test_one_application_builds_each_day_as_its_own_run_would(spark, settings, variables):
    for day in DAYS:
        rebuild_day(lambda: spark.sparkContext, settings, PIPELINE, day, "alone", None)
    alone = rows(settings, BUILT)

    run_module(job("together"), variables)

    together = rows(settings, BUILT)[len(DAYS) :]
    assert [row[0] for row in together] == [day.date for day in DAYS]  # in the order that was asked for
    assert {row[1] for row in together} == {"together"}
    assert [row[2] for row in together] == [1, 2, 3, 4]
    assert [row[3] for row in together] == [row[3] for row in alone]


def test_a_day_that_fails_stops_no_other_and_spark_starts_once(spark, settings, caplog):
    started = []

    def start():
        started.append(spark.sparkContext)
        return spark.sparkContext

    def build(day):
        return rebuild_day(start, settings, PIPELINE, day, "night", None)

    with GenerationStore(settings.database).hold(DAYS[1]):
        done = build_days(DAYS, (), build, lambda: True)

    assert (done.built, done.failed) == ((DAYS[0], *DAYS[2:]), (DAYS[1],))
    assert {each.applicationId for each in started} == {spark.sparkContext.applicationId}
    assert [row[0] for row in rows(settings, BUILT)] == [day.date for day in done.built]
    assert f"day {DAYS[1]} is not built here: DayBusy: another run is rebuilding this day" in caplog.text


def test_a_job_that_is_killed_goes_on_after_the_day_that_killed_it(settings, variables, tmp_path):
    place = {"PIPELINE_FAILPOINTS": "rebuild.before_finish:kill:2", "PIPELINE_FAILPOINTS_DIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, *job("night")], cwd=ROOT, timeout=240, capture_output=True, check=False,
                            env={**os.environ, **variables, **place, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert [row[0] for row in rows(settings, BUILT)] == [DAYS[0].date]

    run_module(job("night"), variables)

    assert [row[0] for row in rows(settings, BUILT)] == [day.date for day in (DAYS[0], *DAYS[2:])]

    own = ["spark_jobs/rebuild_day.py", "--day", str(DAYS[1]), "--run-id", "own"]
    run_module(own, variables)  # the dead job holds the day no more

    assert rows(settings, BUILT)[-1][:3] == (DAYS[1].date, "own", 2)
    assert rows(settings, "SELECT count(*) FROM generation WHERE status = 'building'") == [(0,)]


def test_a_day_has_the_versions_that_came_since_the_day_before_was_built(spark, settings):
    preload = VersionPreload(settings, PIPELINE)

    def build(run_id, day, *shared):
        return rebuild_day(lambda: spark.sparkContext, settings, PIPELINE, day, run_id, None, False, *shared)

    before = build("shared", DAYS[0], preload)
    noon = rfc3339(DAYS[1].start + dt.timedelta(hours=12))
    produce(settings, [("member", 7, member(7, nickname="renamed", createdAt=noon, modifiedAt=noon)),
                       ("member", 8, member(8, createdAt=noon, modifiedAt=noon))])  # fmt: skip
    produce(settings, [("board", 99, board(99, 8, createdAt=noon, modifiedAt=noon))])
    after = build("shared", DAYS[1], preload)

    assert (before.row_count, after.row_count) == (1, 3)
    assert after.content_hash == build("alone", DAYS[1]).content_hash


def test_no_day_is_begun_once_the_time_is_over(settings, variables):
    run_module(job("night", seconds=0), variables)
    assert rows(settings, BUILT) == []
    assert rows(settings, "SELECT count(*) FROM day_attempt") == [(0,)]


def test_a_day_that_is_none_is_refused_before_spark_starts(settings, variables):
    run_module([*job("night")[:2], "2026-11-20,tomorrow", *job("night")[3:]], variables, exit_code=USAGE)
