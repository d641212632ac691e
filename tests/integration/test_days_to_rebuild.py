"""Which days a night rebuilds, on a real PostgreSQL: its own, and the dirty ones that can be and may be."""

import datetime as dt

import pytest

from include.clock import SystemClock
from include.contracts.day import Day
from include.integrity.days import days_to_rebuild, load_window
from tests.support.pipeline import migrated, rows


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "days_to_rebuild", tmp_path)


@pytest.fixture
def yesterday(settings):
    return Day.of(SystemClock().now(), settings.timezone).before(1)


def dirty(settings, day, cause="late board", count=1, held=None):
    rows(settings, "INSERT INTO day_publication (day, held_reason) VALUES (%s, %s) ON CONFLICT (day) DO NOTHING",
         (day.date, held))  # fmt: skip
    rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, %s, %s)", (day.date, cause, count))


def archived(settings, missing_until):
    rows(
        settings,
        "INSERT INTO archive_batch (run_id, topic, topic_id, starts, ends, newest, record_count, gap_until, gap_reason,"
        " taken_at) VALUES ('r', 'board', 't', '{}', '{}', '{}', 0, %s, %s, now())",
        (missing_until, missing_until and "there was no archive yet"),
    )


def test_a_night_rebuilds_yesterday_and_then_the_dirty_days_the_newest_first(settings, yesterday):
    dirty(settings, yesterday.before(5))
    dirty(settings, yesterday.before(2), "late board", 3)
    dirty(settings, yesterday.before(2), "late member", 1)
    assert days_to_rebuild(settings, yesterday) == [str(yesterday), str(yesterday.before(2)), str(yesterday.before(5))]


def test_yesterday_is_listed_once_also_when_it_is_dirty(settings, yesterday):
    dirty(settings, yesterday)
    assert days_to_rebuild(settings, yesterday) == [str(yesterday)]


def test_a_day_that_a_person_holds_is_left_alone_and_told(settings, yesterday, caplog):
    dirty(settings, yesterday.before(1), held="wrong authors")
    rows(settings, "INSERT INTO day_publication (day, held_reason) VALUES (%s, 'me too')", (yesterday.date,))
    assert days_to_rebuild(settings, yesterday) == []
    assert "wrong authors" in caplog.text
    assert "me too" in caplog.text


def test_a_dirty_day_past_the_window_is_told_and_not_tried(settings, yesterday, caplog):
    dirty(settings, yesterday.before(40))
    dirty(settings, yesterday.before(12))
    assert days_to_rebuild(settings, yesterday) == [str(yesterday), str(yesterday.before(12))]
    assert f"day {yesterday.before(40)} is dirty (1 late board) and can't be rebuilt" in caplog.text
    assert f"day {yesterday.before(12)} can be rebuilt for 1 more days only" in caplog.text


def test_with_an_archive_its_limit_counts(settings, yesterday):
    archived(settings, yesterday.before(50).start)
    dirty(settings, yesterday.before(40))
    dirty(settings, yesterday.before(49))  # in the shadow of what is missing
    assert days_to_rebuild(settings, yesterday) == [str(yesterday), str(yesterday.before(40))]
    assert load_window(settings, "analyst").archived_since == yesterday.before(48).date


def test_an_archive_that_has_all_has_no_limit(settings):
    archived(settings, None)
    assert dt.date(1999, 1, 1) in load_window(settings)


def test_without_an_archive_the_topics_limit_counts(settings, yesterday):
    window = load_window(settings)
    assert (window.oldest, window.newest) == (yesterday.before(12).date, yesterday.date)
