"""Offsets of days on a real broker: a night can look up every day that a board can have."""

import datetime as dt

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from include.contracts.day import Day
from include.contracts.fields import END_INSTANT, FIRST_INSTANT
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.integrity.days.due_days import days_in_topic
from include.runtime.settings import Settings
from spark_jobs.batch.sources import MARGIN, fix_ranges
from tests.support.pipeline import environment
from tests.support.topic_log import TopicLog

ZONES = st.sampled_from(["Asia/Seoul", "UTC", "Pacific/Kiritimati", "Etc/GMT+12", "America/New_York"])
# the days of the first and the last instant of the contract in the zones that are furthest apart
FIRST, LAST = (FIRST_INSTANT - dt.timedelta(days=1)).date(), END_INSTANT.date()
RECORDS = 3


@pytest.fixture(scope="module")
def log(kafka):
    log = TopicLog(kafka.bootstrap_servers)
    for topic in (PIPELINE.stream.name, PIPELINE.table.name, PIPELINE.output.name):
        log.make(topic, 1)
        log.send(topic, 0, RECORDS)
    return log


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(date=st.dates(FIRST, LAST), zone=ZONES)
@example(FIRST, "Etc/GMT+12")
@example(dt.date(1970, 1, 1), "Asia/Seoul")
@example(dt.date(1970, 1, 2), "Asia/Seoul")
@example(LAST, "Pacific/Kiritimati")
def test_a_rebuild_finds_its_ranges_for_every_day_of_the_contract(log, date, zone):
    day = Day(date, zone)
    ranges = fix_ranges(log.offsets, day, PIPELINE)
    start = 0 if day.start - MARGIN <= dt.datetime.now(dt.UTC) else RECORDS
    assert ranges.stream == ({0: start}, {0: RECORDS})
    assert ranges.output == ({0: start}, {0: RECORDS})


def test_days_of_1970_are_asked_for(kafka, log, postgres, tmp_path):
    asked = Settings.from_environment(environment(kafka, postgres, "offsets_of_days", tmp_path))
    days = [Day.parse(text, "Asia/Seoul") for text in ("1969-12-31", "1970-01-01", "1970-01-02")]
    assert days_in_topic(asked, days) == set()
