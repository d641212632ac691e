"""A member's version that comes after a publication and is older makes its boards' days dirty: real Kafka."""

import datetime as dt

import pytest

from include.adapters.kafka_offsets import OffsetReader
from include.clock import rfc3339
from include.integrity.days import DirtyDay, dirty_days
from include.integrity.late_members import mark_late_members
from tests.fakes.events import member
from tests.servers import kafka_server
from tests.support.pipeline import produce, rows, with_topics
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, row

MORNING = rfc3339(NOON - dt.timedelta(hours=3))
EVENING = rfc3339(NOON + dt.timedelta(hours=6))
NOW = rfc3339(dt.datetime(2999, 1, 1, tzinfo=dt.UTC))


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of these tests' own: its members are nobody else's."""
    with kafka_server(tmp_path_factory.mktemp("late-kafka")) as server:
        yield server


@pytest.fixture
def settings(broker, postgres, tmp_path):
    """A published day: a board of member 7 at noon, one of member 8; the members' cut is the topic's end."""
    made = with_topics(broker, postgres, "late_members", tmp_path)
    build(made, [row(1, 1), row(2, 2, member_id=8)], cut=9, run_id="r")
    cut_members(made, "generation")
    publish(made, DAY, "r")
    return made


def cut_members(settings, table):
    """Move the cut of the members to the present end of their topic."""
    ends = OffsetReader(settings.kafka.bootstrap_servers).ends("member")
    cut = "jsonb_set(cut, '{member}', jsonb_object(%s::text[], %s::text[]))"
    pairs = ([str(p) for p in ends], [str(o) for o in ends.values()])
    rows(settings, f"UPDATE {table} SET cut = {cut}", pairs)


def send(settings, member_id, at, **fields):
    produce(settings, [("member", member_id, member(member_id, modifiedAt=at, **fields))])


def test_a_version_that_came_late_marks_the_days_of_its_boards_once(settings):
    mark_late_members(settings)  # the place is known from now on
    send(settings, 7, MORNING, nickname="아침")
    send(settings, 99, MORNING)  # has no board
    assert mark_late_members(settings) == 2
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]
    assert mark_late_members(settings) == 0
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]


def test_what_came_between_the_cut_and_the_first_look_is_found(settings):
    send(settings, 7, MORNING)
    assert mark_late_members(settings) == 1
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]


def test_a_late_deletion_marks_too(settings):
    produce(settings, [("member", 8, None)], accepted_at=MORNING)
    assert mark_late_members(settings) == 1
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]


def test_versions_in_time_newer_than_the_boards_or_broken_mark_nothing(settings):
    send(settings, 7, NOW)
    send(settings, 7, EVENING)
    produce(settings, [("member", 7, b"{nonsense"), ("member", "x", member(7, modifiedAt=MORNING))])
    assert mark_late_members(settings) == 1  # the evening's: late, and newer than the board
    assert dirty_days(settings) == []


def test_a_version_below_the_cut_is_in_the_day_already(settings):
    send(settings, 7, MORNING)
    assert mark_late_members(settings) == 1
    rebuilt_with_it(settings)
    rows(settings, "UPDATE offset_ledger SET next_offset = 0 WHERE consumer = 'late_member'")
    assert mark_late_members(settings) >= 1
    assert dirty_days(settings) == []


def rebuilt_with_it(settings):
    """The day as a rebuild up to the present end leaves it."""
    cut_members(settings, "day_publication")
    rows(settings, "DELETE FROM dirty_day")


def test_without_a_published_day_nothing_is_read(broker, postgres, tmp_path):
    made = with_topics(broker, postgres, "late_members", tmp_path)
    assert mark_late_members(made) == 0
    assert rows(made, "SELECT count(*) FROM offset_ledger") == [(0,)]
