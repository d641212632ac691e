"""A member's version that comes after a publication and is older makes its boards' days dirty: real Kafka."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from include.contracts.clock import rfc3339
from include.contracts.errors import DatabaseUnavailable
from include.integrity.days.catch_up import CONSUMER, find_late_versions, wait_until_caught_up
from include.integrity.days.certificate import certify
from include.integrity.days.due_days import DirtyDay, dirty_days
from include.integrity.days.publication import redo, undo
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.certifying import nothing_waits, take_everything
from tests.support.messages import RECORDS_REACHED
from tests.support.pipeline import produce, rows, with_topics
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, row

MORNING = rfc3339(NOON - dt.timedelta(hours=3))
EVENING = rfc3339(NOON + dt.timedelta(hours=6))
NOW = rfc3339(dt.datetime(2999, 1, 1, tzinfo=dt.UTC))
LATE = [DirtyDay(DAY.date, {"late member": 1}, None)]
IN_TRANSACTION = "SELECT state FROM pg_stat_activity WHERE application_name = %s AND state LIKE '%%transaction%%'"


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    """A published day: a board of member 7 at noon, one of member 8; the members' cut is the topic's end."""
    made = with_topics(kafka, postgres, "late_versions", tmp_path)
    build(made, [row(1, 1), row(2, 2, member_id=8)], cut=9, run_id="r")
    cut_members(made, "generation")
    publish(made, DAY, "r")
    return made


def cut_members(settings, table, where=""):
    """Move the cut of the members to the present end of their topic."""
    ends = OffsetReader(settings.kafka.connection).ends("member")
    cut = "jsonb_set(cut, '{member}', jsonb_object(%s::text[], %s::text[]))"
    pairs = ([str(p) for p in ends], [str(o) for o in ends.values()])
    rows(settings, f"UPDATE {table} SET cut = {cut} {where}", pairs)


def send(settings, member_id, at, **fields):
    produce(settings, [("member", member_id, member(member_id, modifiedAt=at, **fields))])


def test_a_version_that_came_late_marks_the_days_of_its_boards_once(settings):
    find_late_versions(settings)  # the place is known from now on
    send(settings, 7, MORNING, nickname="아침")
    send(settings, 99, MORNING)  # has no board
    assert find_late_versions(settings) == 2
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]
    assert find_late_versions(settings) == 0
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]


def test_what_came_between_the_cut_and_the_first_look_is_found(settings):
    send(settings, 7, MORNING)
    assert find_late_versions(settings) == 1
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]


def test_a_late_deletion_marks_too(settings):
    produce(settings, [("member", 8, None)], accepted_at=MORNING)
    assert find_late_versions(settings) == 1
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1}, None)]


def test_versions_in_time_newer_than_the_boards_or_broken_mark_nothing(settings):
    send(settings, 7, NOW)
    send(settings, 7, EVENING)
    produce(settings, [("member", 7, b"{nonsense"), ("member", "x", member(7, modifiedAt=MORNING))])
    assert find_late_versions(settings) == 0
    assert dirty_days(settings) == []


def test_a_version_or_deletion_dated_ahead_marks_nothing(settings):
    find_late_versions(settings)
    sent = dt.datetime.now(dt.UTC)
    within, ahead = (rfc3339(sent + dt.timedelta(minutes=minutes)) for minutes in (4, 6))
    rows(settings, "UPDATE generation SET newest_version_at = %s", (sent + dt.timedelta(days=1),))
    send(settings, 7, ahead)
    produce(settings, [("member", 8, None)], accepted_at=ahead)
    assert find_late_versions(settings) == 0
    send(settings, 7, within)
    produce(settings, [("member", 8, None)], accepted_at=within)
    assert find_late_versions(settings) == 2


def test_a_version_below_the_cut_is_in_the_day_already(settings):
    send(settings, 7, MORNING)
    assert find_late_versions(settings) == 1
    for table in ("generation", "day_publication"):  # as a rebuild up to the present end leaves them
        cut_members(settings, table)
    rows(settings, "UPDATE offset_ledger SET next_offset = 0 WHERE consumer = 'late_version'")
    assert find_late_versions(settings) == 0
    assert rows(settings, "SELECT count(*) FROM late_version") == [(0,)]
    assert dirty_days(settings) == []


def test_no_transaction_is_open_while_the_topic_is_read(settings, monkeypatch):
    """PostgreSQL ends a session that stands still in a transaction for ten minutes; a long topic takes longer."""
    opened, plain = [], TopicTail.iter_to

    def sampled(tail, ends):
        for lot in plain(tail, ends):
            yield lot
            opened.extend(rows(settings, IN_TRANSACTION, (CONSUMER,), role="batch"))

    monkeypatch.setattr(TopicTail, "iter_to", sampled)
    send(settings, 7, MORNING)
    assert find_late_versions(settings) == 1
    assert opened == []
    assert dirty_days(settings) == LATE


def test_a_search_that_ends_before_its_place_moved_is_made_up_for(settings, monkeypatch):
    send(settings, 7, MORNING)
    with monkeypatch.context() as patched:
        patched.setattr("include.integrity.days.catch_up.move_partitions", refuse)
        with pytest.raises(DatabaseUnavailable):
            find_late_versions(settings)
    assert dirty_days(settings) == []
    find_late_versions(settings)
    assert dirty_days(settings) == LATE


def refuse(*_):
    raise DatabaseUnavailable("a test says so")


def test_without_a_published_day_nothing_is_read(kafka, postgres, tmp_path):
    made = with_topics(kafka, postgres, "late_versions", tmp_path)
    assert find_late_versions(made) == 0
    assert rows(made, "SELECT count(*) FROM offset_ledger") == [(0,)]


def test_several_search_at_once(settings):
    for number in range(20):
        send(settings, 7, MORNING, nickname=f"v{number}")
    with ThreadPoolExecutor(4) as pool:
        for search in [pool.submit(find_late_versions, settings) for _ in range(8)]:
            search.result(60)
    assert dirty_days(settings) == LATE
    assert rows(settings, "SELECT count(*) FROM late_version") == [(20,)]
    assert find_late_versions(settings) == 0


class TestCertifying:
    """A certificate is about all that was accepted before it, whoever has read it by then."""

    def test_finds_late_versions_itself(self, settings):
        assert caught_up_certificate(settings).reason is None
        send(settings, 7, MORNING)
        certificate = caught_up_certificate(settings)
        assert f"1 {RECORDS_REACHED}" in certificate.reason
        assert certificate.needs_only_rebuild

    def test_refuses_while_the_stream_is_behind(self, settings):
        produce(settings, [("board", 5, board(5, 7)), ("board", 6, board(6, 7))])
        certificate = certify(settings, DAY, nothing_waits, catch_up_at_once)
        assert "the stream is 2 records behind" in certificate.reason
        assert (certificate.count("behind"), certificate.needs_only_rebuild) == (2, False)
        take_everything(settings)
        assert certify(settings, DAY, nothing_waits, catch_up_at_once).reason is None

    def test_waits_for_the_stream(self, settings, caplog):
        caplog.set_level("INFO")
        produce(settings, [("board", 5, board(5, 7))])
        with ThreadPoolExecutor(1) as pool:
            certifying = pool.submit(certify, settings, DAY, nothing_waits)
            wait_until(lambda: "waiting up to" in caplog.text, 30, "it waits")
            take_everything(settings)
            assert certifying.result(60).reason is None


def caught_up_certificate(settings):
    take_everything(settings)
    return certify(settings, DAY, nothing_waits)


def catch_up_at_once(settings):
    find_late_versions(settings)
    return wait_until_caught_up(settings, 0)


class TestADayThatMoves:
    """A late version's record is read once; what the day shows moves afterwards."""

    @pytest.fixture
    def settings(self, settings):
        """As above, with another published day, so that there is always one that members can be late for."""
        build(settings, [row(3, 3, member_id=9, day=DAY.before(1).date)], cut=9, run_id="o", day=DAY.before(1))
        cut_members(settings, "generation", "WHERE run_id = 'o'")
        publish(settings, DAY.before(1), "o")
        return settings

    def test_that_was_undone_when_the_record_was_read_is_dirty_when_it_is_redone(self, settings):
        find_late_versions(settings)
        undo(settings, DAY, "test")
        send(settings, 7, MORNING)
        assert find_late_versions(settings) == 1
        assert dirty_days(settings) == []
        redo(settings, DAY, "test")
        assert dirty_days(settings) == LATE

    def test_that_is_published_later_with_an_earlier_cut_is_dirty(self, settings):
        build(settings, [row(1, 1), row(2, 2, member_id=8), row(4, 4)], cut=12, run_id="later")
        cut_members(settings, "generation", "WHERE run_id = 'later'")
        send(settings, 7, MORNING)
        assert find_late_versions(settings) == 1
        assert dirty_days(settings) == LATE
        publish(settings, DAY, "later")  # clears the marks
        assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 2}, None)]

    def test_that_was_never_published_when_the_record_was_read_is_dirty(self, settings):
        day = DAY.before(2)
        build(settings, [row(5, 5, day=day.date)], cut=9, run_id="first", day=day)
        cut_members(settings, "generation", "WHERE run_id = 'first'")
        send(settings, 7, MORNING)
        assert find_late_versions(settings) == 1
        assert dirty_days(settings) == LATE
        rows(settings, "DELETE FROM dirty_day")
        publish(settings, day, "first")
        assert dirty_days(settings) == [DirtyDay(day.date, {"late member": 1}, None)]

    def test_that_shows_the_same_after_its_rebuild_keeps_what_came_after_the_cut(self, settings):
        build(settings, [row(1, 1), row(2, 2, member_id=8)], cut=9, run_id="same")
        cut_members(settings, "generation", "WHERE run_id = 'same'")
        send(settings, 7, MORNING)
        assert find_late_versions(settings) == 1
        assert publish(settings, DAY, "same").was_identical
        assert dirty_days(settings) == LATE


def test_a_version_newer_than_the_last_publication_is_late_for_a_board_that_is_newer_still(settings):
    ahead = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=4)  # a client's clock
    build(settings, [row(1, 1, modified_at=ahead), row(2, 2, member_id=8)], cut=10, run_id="ahead")
    cut_members(settings, "generation", "WHERE run_id = 'ahead'")
    publish(settings, DAY, "ahead")
    send(settings, 7, rfc3339(ahead - dt.timedelta(minutes=1)))
    assert find_late_versions(settings) == 1
    assert dirty_days(settings) == LATE


def test_a_partition_that_the_cut_does_not_have_was_read_from_its_start(settings):
    rows(settings, """UPDATE generation SET cut = '{"board": {"0": 9}, "member": {}}'""")
    rows(settings, """UPDATE day_publication SET cut = '{"board": {"0": 9}, "member": {}}'""")
    send(settings, 7, MORNING)
    assert find_late_versions(settings) >= 1
    assert [(one.day, list(one.causes)) for one in dirty_days(settings)] == [(DAY.date, ["late member"])]


def test_records_that_are_gone_are_named_with_their_days_and_the_rest_is_read(settings, caplog):
    find_late_versions(settings)
    send(settings, 7, MORNING)
    cut_short(settings)
    send(settings, 8, MORNING)
    assert find_late_versions(settings) == 1
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late member": 1, "unread member": 1}, None)]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "member" in line
    assert str(DAY) in line
    caplog.clear()
    find_late_versions(settings)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def cut_short(settings):
    """As an administrator's `delete-records` leaves the topic."""
    ends = OffsetReader(settings.kafka.connection).ends("member")
    admin = AdminClient({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for future in admin.delete_records([TopicPartition("member", p, end) for p, end in ends.items()]).values():
        future.result()
