"""The days that a night rebuilds and certifies, on a real PostgreSQL."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day, DayNotOver
from include.contracts.errors import REFUSED
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import GenerationStore
from include.integrity.days.comparison import verify
from include.integrity.days.due_days import (
    MANY_RUNS,
    MAX_DAYS,
    NEAR_DAYS,
    days_to_certify,
    days_to_rebuild,
    load_window,
)
from include.integrity.days.publication import publish
from pipeline.__main__ import main
from spark_jobs.batch.rebuild import rebuild_day
from tests.support.certifying import certify_alone
from tests.support.examples import examples
from tests.support.messages import DAY_NOT_OVER
from tests.support.pipeline import environment, grown_up, migrated, rows
from tests.support.serving import DAY, build, row


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "days_to_rebuild", tmp_path)


@pytest.fixture(scope="module")
def database(postgres, tmp_path_factory):
    return migrated(None, postgres, "days_of_examples", tmp_path_factory.mktemp("days-of-examples"))


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


def opened(settings, *days, generation=False, status="provisional", held=None):
    """Open the days as the stream does; with `generation`, as published ones."""
    for day in days:
        rows(settings, "INSERT INTO day_publication (day, status, held_reason) VALUES (%s, %s, %s)",
             (day.date, status, held))  # fmt: skip
        if generation:
            rows(
                settings,
                "INSERT INTO generation (day, run_id, status, cut) VALUES (%s, 'r', 'published', '{}')",
                (day.date,),
            )
            rows(settings, "UPDATE day_publication SET generation_id = (SELECT max(id) FROM generation)"
                 " WHERE day = %s", (day.date,))  # fmt: skip


def chosen(settings, yesterday, in_topic=()):
    return days_to_rebuild(settings, yesterday, lambda _, days: {day.date for day in days} & {d.date for d in in_topic})


def test_a_night_makes_up_for_those_that_were_missed_the_soonest_to_expire_first(settings, yesterday):
    opened(settings, *(yesterday.before(age) for age in (3, 0, 11)))
    assert chosen(settings, yesterday, [yesterday.before(5)]) == [str(yesterday.before(age)) for age in (11, 5, 3, 0)]


def test_a_day_is_known_by_the_stream_the_topic_the_archive_what_waits_or_the_system_of_record(settings, yesterday):
    opened(settings, yesterday.before(1))
    archived(settings, yesterday.before(30).start)
    rows(settings, "INSERT INTO archive_file (batch_id, kind, day, path, record_count, byte_count)"
         " SELECT max(id), 'records', %s, 'p', 1, 1 FROM archive_batch", (yesterday.before(20).date,))  # fmt: skip
    rows(settings, "INSERT INTO pending_record (topic, partition, \"offset\", board_id, member_id, day, value,"
         " kafka_timestamp, version_at) VALUES ('board', 0, 0, 1, 1, %s, '', now(), now())",
         (yesterday.before(3).date,))  # fmt: skip
    rows(settings, "INSERT INTO site.board_document (id, document, modified_at)"
         " VALUES (1, jsonb_build_object('createdAt', %s::text), now())",
         (rfc3339(yesterday.before(4).start),))  # fmt: skip
    days = chosen(settings, yesterday, [yesterday.before(2)])
    assert sorted(days) == sorted(str(yesterday.before(age)) for age in (1, 2, 3, 4, 20))


def test_a_night_takes_days_that_were_never_published_before_the_dirty_ones(settings, yesterday):
    opened(settings, yesterday, yesterday.before(1))
    opened(settings, yesterday.before(2), yesterday.before(5), generation=True)
    dirty(settings, yesterday.before(5))
    dirty(settings, yesterday.before(2), "late board", 3)
    dirty(settings, yesterday.before(2), "late member", 1)
    assert chosen(settings, yesterday) == [str(yesterday.before(age)) for age in (1, 0, 5, 2)]


def test_a_published_day_that_nothing_reached_is_rebuilt_as_the_nights_own_alone(settings, yesterday):
    opened(settings, yesterday, yesterday.before(1), generation=True)
    assert chosen(settings, yesterday) == [str(yesterday)]


def test_an_own_day_of_which_nothing_is_known_has_nothing_to_rebuild(settings, yesterday):
    assert chosen(settings, yesterday) == []


def test_yesterday_is_listed_once_also_when_it_is_dirty(settings, yesterday):
    opened(settings, yesterday, generation=True)
    dirty(settings, yesterday)
    assert chosen(settings, yesterday) == [str(yesterday)]


def test_a_day_that_is_not_over_is_refused_and_no_night_takes_it(settings, yesterday):
    today = yesterday.before(-1)
    opened(settings, today)
    with pytest.raises(DayNotOver, match=f"day={today}: {DAY_NOT_OVER.format(today.zone)}"):
        chosen(settings, today)
    assert chosen(settings, yesterday) == []


WAYS = {
    "publish": lambda settings, day: publish(settings, day),
    "certify": certify_alone,
    "rebuild": lambda settings, day: rebuild_day(pytest.fail, settings, PIPELINE, day, "r", None),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_done_to_a_day_that_is_not_over(settings, yesterday, way):
    today = yesterday.before(-1)
    with pytest.raises(DayNotOver, match=f"day={today}: {DAY_NOT_OVER.format(today.zone)} .*; wait until then"):
        WAYS[way](settings, today)


@pytest.mark.parametrize("command", ["rebuild", "publish", "certify"])
def test_a_command_refuses_a_day_that_is_not_over(
    settings, postgres, tmp_path, yesterday, command, monkeypatch, caplog
):
    for name, value in environment(None, postgres, "days_to_rebuild", tmp_path).items():
        monkeypatch.setenv(name, value)
    assert main(["days", command, "--day", str(yesterday.before(-1))]) == REFUSED
    assert DAY_NOT_OVER.format("Asia/Seoul") in caplog.text


def test_a_day_that_a_person_holds_is_left_alone_and_told(settings, yesterday, caplog):
    dirty(settings, yesterday.before(1), held="wrong authors")
    opened(settings, yesterday, held="me too")
    assert chosen(settings, yesterday) == []
    assert "wrong authors" in caplog.text
    assert "me too" in caplog.text


def test_a_day_past_the_window_is_told_and_not_tried(settings, yesterday, caplog):
    opened(settings, yesterday.before(40), generation=True)
    opened(settings, yesterday.before(30), yesterday.before(12))
    dirty(settings, yesterday.before(40))
    assert chosen(settings, yesterday) == [str(yesterday.before(12))]
    # the archive runs in the same night
    assert f"day {yesterday.before(30)} was never published and waits for the archive's first run" in caplog.text
    grown_up(settings)
    assert chosen(settings, yesterday) == [str(yesterday.before(12))]
    assert f"day {yesterday.before(40)} is dirty (1 late board) and can't be rebuilt" in caplog.text
    assert f"day {yesterday.before(30)} was never published and can't be rebuilt" in caplog.text
    assert f"day {yesterday.before(12)} was never published and can be rebuilt for 1 more days only" in caplog.text


def test_with_an_archive_its_limit_counts_and_the_newest_comes_first(settings, yesterday):
    archived(settings, yesterday.before(50).start)
    opened(settings, *(yesterday.before(age) for age in (0, 40, 49)))  # the last in the shadow of what is missing
    assert chosen(settings, yesterday) == [str(yesterday), str(yesterday.before(40))]
    assert load_window(settings, "integrity").archived_since == yesterday.before(48).date


def test_a_night_has_no_more_days_than_airflow_expands(settings, yesterday, caplog):
    archived(settings, None)
    opened(settings, *(yesterday.before(age) for age in range(MAX_DAYS + 5)))
    assert chosen(settings, yesterday) == [str(yesterday.before(age)) for age in range(MAX_DAYS)]
    assert f"5 days are left for later nights, from {yesterday.before(MAX_DAYS)} on" in caplog.text


def test_a_day_that_expires_soon_is_not_lost_behind_days_that_never_expire(settings, yesterday):
    archived(settings, yesterday.before(3).start)  # it has yesterday and the day before for ever
    expiring = yesterday.before(11)
    opened(settings, expiring, generation=True)
    dirty(settings, expiring)
    assert load_window(settings).days_left(expiring.date) == 2
    opened(settings, *(yesterday.before(age) for age in (0, 1, 8)))
    assert chosen(settings, yesterday) == [str(yesterday.before(age)) for age in (11, 8, 0, 1)]


@examples(10, 100)
@given(
    unpublished=st.sets(st.integers(0, 14)), marked=st.sets(st.integers(0, 14)), failing=st.sets(st.integers(0, 14)),
    archive_age=st.none() | st.integers(0, 14), most=st.integers(1, 12),
)  # fmt: skip
def test_no_day_is_lost_behind_one_that_can_wait(database, unpublished, marked, failing, archive_age, most):
    """Days that a night of `most` days leaves, and that expire soon, expire no sooner than those that it builds."""
    rows(database, "TRUNCATE day_publication, dirty_day, archive_batch, day_attempt, generation CASCADE",
         role="pipeline_owner")  # fmt: skip
    yesterday = Day.of(SystemClock().now(), database.timezone).before(1)
    if archive_age is not None:
        archived(database, yesterday.before(archive_age + 2).start)
    opened(database, *(yesterday.before(age) for age in sorted(unpublished)))
    opened(database, *(yesterday.before(age) for age in sorted(marked - unpublished)), generation=True)
    for age in marked - unpublished:
        dirty(database, yesterday.before(age))
    for age in failing & (unpublished | marked):
        begun(database, yesterday.before(age), MANY_RUNS)
    window = load_window(database)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("include.integrity.days.due_days.MAX_DAYS", most)
        built = [Day.parse(day, database.timezone) for day in chosen(database, yesterday)]
    possible = {yesterday.before(age) for age in unpublished | marked if yesterday.before(age).date in window}
    assert len(built) == min(most, len(possible))
    assert set(built) <= possible

    def is_due(day):
        left = window.days_left(day.date)
        return left is not None and left <= NEAR_DAYS and (yesterday.date - day.date).days not in failing

    order = [(window.days_left(day.date) if is_due(day) else NEAR_DAYS + 1) for day in built]
    assert order == sorted(order)
    for left in possible - set(built):
        if is_due(left):
            assert all(is_due(day) and day.date <= left.date for day in built)


def begun(settings, day, runs, run_id="night"):
    for number in range(runs):
        GenerationStore(settings.database).count_attempt(day, f"{run_id} {number}")


def test_days_that_fail_every_night_come_after_all_others(settings, yesterday, caplog):
    opened(settings, *(yesterday.before(age) for age in range(4)))
    dirty(settings, yesterday.before(5))
    begun(settings, yesterday.before(3), MANY_RUNS + 1)
    begun(settings, yesterday.before(2), MANY_RUNS)
    begun(settings, yesterday.before(1), MANY_RUNS - 1)
    assert chosen(settings, yesterday) == [str(yesterday.before(age)) for age in (5, 1, 0, 2, 3)]
    assert f"day {yesterday.before(3)} was begun by {MANY_RUNS + 1} runs and published by none" in caplog.text


def test_any_number_of_days_that_fail_leave_room_for_one_that_does_not(settings, yesterday):
    archived(settings, None)
    failing = [yesterday.before(age) for age in range(1, MAX_DAYS + 5)]
    opened(settings, *failing)
    for day in failing:
        begun(settings, day, MANY_RUNS)
    dirty(settings, yesterday)
    assert chosen(settings, yesterday)[0] == str(yesterday)


def test_a_run_that_tries_again_counts_once_and_a_publication_ends_the_count(settings):
    for _ in range(2 * MANY_RUNS):
        begun(settings, DAY, 1)
    count = "SELECT runs FROM day_attempt"
    assert rows(settings, count) == [(1,)]
    build(settings, [row(1, 1)], cut=2, run_id="night 0")
    verify(settings, DAY, "night 0")
    publish(settings, DAY, "night 0")
    assert rows(settings, count) == []


def test_a_later_night_certifies_what_is_published_clean_and_not_held(settings, yesterday):
    for age in range(5):
        opened(settings, yesterday.before(age), generation=True, status="rebuilt")
    opened(settings, yesterday.before(5), generation=True, status="certified")
    opened(settings, yesterday.before(6))
    dirty(settings, yesterday.before(1))
    rows(settings, "UPDATE day_publication SET held_reason = 'mine' WHERE day = %s", (yesterday.before(2).date,))
    assert days_to_certify(settings, [str(yesterday)]) == [str(yesterday.before(3)), str(yesterday.before(4))]


def test_an_archive_that_has_all_has_no_limit(settings):
    archived(settings, None)
    assert dt.date(1999, 1, 1) in load_window(settings)


def test_without_an_archive_the_topics_limit_counts(settings, yesterday):
    window = load_window(settings)
    assert (window.oldest, window.newest) == (yesterday.before(12).date, yesterday.date)
