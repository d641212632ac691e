"""The zone in which days are counted, on a real PostgreSQL: it can be changed until there is a day."""

import dataclasses
import datetime as dt
import threading
from contextlib import closing

import psycopg2
import pytest

from include.contracts.day import Day
from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.migrate import migrate
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.speed.driver import Driver
from stack.machine import unused
from tests.support.pipeline import migrated, rows
from tests.support.serving import DAY as SEOUL
from tests.support.serving import opened_store, row, serve

FILED = {
    "a day of the stream": "INSERT INTO day_publication (day) VALUES ('2026-11-20')",
    "a board that waits": 'INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value,'
    " kafka_timestamp, version_at) VALUES ('board', 0, 0, 1, 1, '2026-11-20', '', now(), now())",
    "a file": "WITH batch AS (INSERT INTO archive_batch (run_id, topic, topic_id, starts, ends, newest, record_count,"
    " taken_at) VALUES ('r', 'board', 't', '{}', '{}', '{}', 0, now()) RETURNING id)"
    " INSERT INTO archive_file (batch_id, kind, day, path, record_count, byte_count)"
    " SELECT id, 'records', '2026-11-20', 'p', 1, 1 FROM batch",
}
DAY = Day.parse("2026-11-19", "Europe/Berlin")
FILED_UNDER = "the days of this database and its archive were filed under"
STARTS = {
    "migrate": migrate,
    "rebuild": lambda settings: rebuild_day(pytest.fail, settings, PIPELINE, DAY, "r", None),
    "archive": lambda settings: archive_topics(pytest.fail, settings, PIPELINE, "r"),
    "stream": lambda settings: Driver(settings, PIPELINE, ["join", "serve"], threading.Event()).run(),
}


@pytest.fixture
def settings(postgres, tmp_path):
    settings = migrated(None, postgres, "kept_zone", tmp_path)
    # that of the default is in use while the stack runs
    return dataclasses.replace(settings, stream=dataclasses.replace(settings.stream, metrics_port=unused(1)[0]))


def test_an_analysts_session_is_in_the_zone_of_the_days(settings, postgres):
    """Of a board of the first hours of a day another date is read in UTC."""
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1, created_at=SEOUL.start), row(2, 2, created_at=SEOUL.end - dt.timedelta(seconds=1))])
    session = psycopg2.connect(
        host=settings.database.host, port=settings.database.port, dbname=settings.database.name, user="analyst",
        password=settings.database.password("analyst"))  # fmt: skip
    with closing(session), session.cursor() as cursor:
        cursor.execute("SHOW timezone")
        assert cursor.fetchone() == ("Asia/Seoul",)
        cursor.execute("SELECT count(*), count(*) FILTER (WHERE created_at::date = day) FROM board_detail_masked")
        assert cursor.fetchone() == (2, 2)


def moved(settings):
    return dataclasses.replace(settings, timezone="Europe/Berlin")


@pytest.mark.parametrize("start", STARTS)
def test_another_zone_is_refused_with_the_remedy_once_a_day_is_filed(settings, start):
    rows(settings, FILED["a day of the stream"])
    with pytest.raises(
        ConfigurationError, match=f"PIPELINE_TIMEZONE=Europe/Berlin: {FILED_UNDER} Asia/Seoul; set it back"
    ):
        STARTS[start](moved(settings))


@pytest.mark.parametrize("filed", FILED)
def test_whatever_is_filed_keeps_its_zone(settings, filed):
    rows(settings, FILED[filed])
    with pytest.raises(ConfigurationError, match=f"{FILED_UNDER} Asia/Seoul"):
        migrate(moved(settings))
    migrate(settings)


def test_until_a_day_is_filed_the_zone_may_change(settings):
    migrate(moved(settings))
    rows(settings, FILED["a day of the stream"])
    with pytest.raises(ConfigurationError, match=f"{FILED_UNDER} Europe/Berlin"):
        migrate(settings)
