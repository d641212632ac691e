"""The checker is checked: each thing that must not happen is made to happen, and seen. So are the plan and the load."""

import datetime as dt
import json

import pytest

from include.failpoints import STREAM_FAILPOINTS
from tests.fakes.events import board, member
from tests.faults.stream_load import KEYS_A_ROUND, Load
from tests.faults.stream_plan import ONCE, Effect, plans
from tests.faults.stream_topics import KNOWN, REPLACED_BY, Log, Place, Record, TopicReader, content
from tests.faults.stream_verdict import Row, Seen, judge
from tests.support.broker import PARTITIONS, Broker, remove_topics

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
LATER = "2026-11-20T10:30:00.000Z"


class Topics:
    """A log that is written record by record, each topic with one partition."""

    def __init__(self):
        self.log = Log()
        self._next = {}

    def add(self, topic, key, value, **headers):
        """Append a record; returns its offset."""
        offset = self._next.get(topic, 0)
        self._next[topic] = offset + 1
        encoded = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        named = {name.replace("_", "-"): str(text) for name, text in headers.items()}
        self.log.take(Record(Place(topic, 0, offset), str(key).encode(), encoded, named, NOW))
        return offset

    def next_of(self, topic, offset):
        """Set the offset of the topic's next record."""
        self._next[topic] = offset

    def detail(self, key, stream_offset, table_offset=None):
        """Add the record that the join sends for a board record."""
        headers = {
            "board-partition": 0,
            "board-offset": stream_offset,
        }
        if table_offset is not None:
            headers |= {
                "member-partition": 0,
                "member-offset": table_offset,
            }
        return self.add("board-detail", key, b"{}", **headers)


def row(board_id=10, source=0, author=0, detail=0, title="v0", nickname="가", member_id=1):
    return Row(board_id, member_id, (0, source), (0, author), (0, detail),
               content("board", board(title=title)), content("member", member(nickname=nickname)))  # fmt: skip


def seen(*rows, pending=None, rejects=()):
    waiting = {key: {(0, offset) for offset in offsets} for key, offsets in (pending or {}).items()}
    return Seen(list(rows), waiting, set(rejects))


def broken(topics, what, before=()):
    return set(judge(topics.log, what, {each.board: each for each in before}).faults)


@pytest.fixture
def topics():
    """Member 1 and its board 10, joined."""
    made = Topics()
    made.add("member", 1, member(1, nickname="가"))
    made.add("board", 10, board(10, 1, title="v0"))
    made.detail(10, 0, 0)
    return made


def test_all_is_well(topics):
    verdict = judge(topics.log, seen(row()), {10: row()})
    assert verdict.faults == {}
    assert (verdict.boards, verdict.rows, verdict.duplicates) == (1, 1, 0)


def test_of_a_topic_made_again_the_newer_record_counts(topics):
    topics.add("board", 10, b"broken")
    topics.log.replace_boards("former")
    former = (-1, -REPLACED_BY)
    kept = row()._replace(source=former)
    rejected = [Place("board@former", 0, 1)]
    assert broken(topics, seen(kept, rejects=rejected)) == set()
    topics.next_of("board", 0)
    topics.add("board", 10, board(10, 1, title="v0"))
    topics.detail(10, 0, 0)
    assert broken(topics, seen(kept, rejects=rejected)) == {"outdated"}
    assert broken(topics, seen(row(detail=1), rejects=rejected)) == set()


def test_of_a_topic_made_again_twice_the_row_names_the_detail_of_the_second(topics):
    topics.log.replace_boards("first")
    topics.next_of("board", 0)
    topics.add("board", 10, board(10, 1, title="v0"))
    topics.detail(10, 0, 0)
    topics.log.replace_boards("second")
    former = row(detail=1)._replace(source=(-1, -REPLACED_BY))
    assert broken(topics, seen(former)) == set()
    assert broken(topics, seen(former._replace(detail=(0, 0)))) == {"wrong_place"}


def test_of_a_topic_made_again_twice_two_boards_may_be_named_alike(topics):
    topics.log.replace_boards("first")
    topics.next_of("board", 0)
    topics.add("board", 11, board(11, 1, title="v1"))
    topics.detail(11, 0, 0)
    topics.log.replace_boards("second")
    first, second = (-1, -REPLACED_BY), row(board_id=11, detail=1, title="v1")
    assert broken(topics, seen(row()._replace(source=first), second._replace(source=first))) == set()


def test_board_that_is_not_shown_is_lost(topics):
    assert broken(topics, seen()) == {"lost"}


def test_board_that_waits_although_its_member_came_is_lost_and_left(topics):
    assert broken(topics, seen(pending={10: [0]})) == {"lost", "pending_left"}


def test_two_rows_of_a_board_are_doubled(topics):
    assert broken(topics, seen(row(), row())) == {"doubled"}


def test_row_without_a_record_is_made_up(topics):
    assert "made_up" in broken(topics, seen(row(), row(board_id=11)))
    assert "made_up" in broken(topics, seen(row(source=7)))
    assert "made_up" in broken(topics, seen(row(author=7)))


def test_older_version_is_outdated(topics):
    topics.add("board", 10, board(10, 1, title="v1", modifiedAt=LATER))
    topics.detail(10, 1, 0)
    assert broken(topics, seen(row())) == {"outdated"}
    assert broken(topics, seen(row(source=1, detail=1, title="v1"))) == set()


def test_old_version_that_came_later_must_not_be_shown(topics):
    topics.add("board", 10, board(10, 1, title="old", modifiedAt="2026-11-19T00:00:00.000Z"))
    topics.detail(10, 1, 0)
    assert broken(topics, seen(row())) == set()
    assert broken(topics, seen(row(source=1, detail=1, title="old"))) == {"outdated"}


def test_deleted_board_must_not_be_shown(topics):
    topics.add("board", 10, None, accepted_at=LATER)
    assert broken(topics, seen(row())) == {"outdated"}
    assert broken(topics, seen()) == set()


def test_deletion_without_a_time_counts_from_its_record(topics):
    topics.add("board", 10, None)
    assert broken(topics, seen()) == set()


def test_late_deletion_deletes_nothing_newer(topics):
    topics.add("board", 10, None, accepted_at="2026-11-19T00:00:00.000Z")
    assert broken(topics, seen(row())) == set()


def test_author_that_was_superseded_before_the_board_was_sent_is_wrong(topics):
    newer = topics.add("member", 1, member(1, nickname="나", modifiedAt=LATER))
    topics.add("board", 11, board(11, 1, title="v0"), **{KNOWN: newer})
    topics.detail(11, 1, 0)
    topics.detail(11, 1, 1)
    old = row(board_id=11, source=1, detail=1)
    assert broken(topics, seen(row(), old)) == {"wrong_author"}
    assert broken(topics, seen(row(), old._replace(author=(0, 1)))) == {"wrong_content", "wrong_place"}


def test_author_that_changed_meanwhile_may_be_either(topics):
    topics.add("member", 1, member(1, nickname="나", modifiedAt=LATER))
    assert broken(topics, seen(row())) == set()
    topics.log.details[0] = topics.log.details[0]._replace(member=(0, 1))
    assert broken(topics, seen(row(author=1, nickname="나"))) == set()


def test_author_that_another_never_was_is_wrong(topics):
    topics.add("member", 2, member(2, nickname="다"))
    topics.log.details[0] = topics.log.details[0]._replace(member=(0, 1))
    assert broken(topics, seen(row(author=1, nickname="다"))) == {"wrong_author"}


def test_replayed_member_is_no_author(topics):
    topics.add("member", 1, member(1, nickname="옛", modifiedAt="2026-11-19T00:00:00.000Z"))
    topics.log.details[0] = topics.log.details[0]._replace(member=(0, 1))
    assert broken(topics, seen(row(author=1, nickname="옛"))) == {"wrong_author"}


@pytest.mark.parametrize("wrong", [{"title": "other"}, {"nickname": "other"}, {"member_id": 2}])
def test_other_content_than_that_of_the_records_is_wrong(topics, wrong):
    assert broken(topics, seen(row(**wrong))) == {"wrong_content"}


def test_row_must_name_the_first_record_it_came_by(topics):
    topics.detail(10, 0, 0)
    assert broken(topics, seen(row())) == set()
    assert broken(topics, seen(row(detail=1))) == {"wrong_place"}
    assert judge(topics.log, seen(row()), {}).duplicates == 1


def test_settled_row_must_not_change_without_a_newer_version(topics):
    topics.add("member", 1, member(1, nickname="나", modifiedAt=LATER))
    assert broken(topics, seen(row()), before=[row(author=1, nickname="나", detail=1)]) == {"changed"}
    topics.add("board", 10, board(10, 1, title="v1", modifiedAt=LATER))
    topics.detail(10, 1, 1)
    newer = row(source=1, author=1, detail=1, title="v1", nickname="나")
    assert broken(topics, seen(newer), before=[row()]) == set()


@pytest.fixture
def waiting(topics):
    """Board 12, whose member nobody knows."""
    topics.add("board", 12, board(12, 9))
    return topics


def test_board_without_a_member_waits(waiting):
    assert broken(waiting, seen(row(), pending={12: [1]})) == set()
    assert broken(waiting, seen(row())) == {"pending_missing"}


def test_board_waits_no_more_when_its_member_came(waiting):
    waiting.add("member", 9, member(9))
    assert broken(waiting, seen(row(), pending={12: [1]})) == {"lost", "pending_left"}


def test_board_of_a_deleted_member_waits_unless_it_was_joined_before(topics):
    topics.add("member", 1, None, accepted_at=LATER)
    assert broken(topics, seen(row())) == set(), "joined before"
    assert broken(topics, seen(pending={10: [0]})) == set(), "joined after"
    assert broken(topics, seen(row(), pending={10: [0]})) == {"pending_left"}
    topics.add("board", 11, board(11, 1), **{KNOWN: 1})
    assert broken(topics, seen(row())) == {"pending_missing"}


def test_deleted_board_does_not_wait(waiting):
    waiting.add("board", 12, None, accepted_at=LATER)
    assert broken(waiting, seen(row(), pending={12: [1]})) == {"pending_left"}
    assert broken(waiting, seen(row())) == set()


def test_version_that_waits_leaves_the_older_one_shown(topics):
    topics.add("board", 10, board(10, 9, title="v1", modifiedAt=LATER))
    assert broken(topics, seen(row(), pending={10: [1]})) == set()
    assert broken(topics, seen(pending={10: [1]})) == {"lost"}


def test_old_version_does_not_wait_when_a_newer_one_is_shown(topics):
    topics.add("board", 10, board(10, 9, title="old", modifiedAt="2026-11-19T00:00:00.000Z"))
    assert broken(topics, seen(row(), pending={10: [1]})) == {"pending_left"}
    assert broken(topics, seen(row())) == set()


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("board", 13, b"{nonsense"),
        ("board", 13, b"\xff"),
        ("board", 13, board(13, "nobody")),
        ("board", 13, board(14)),
        ("board", 13, [board(13)]),
        ("board", "x", None),
        ("member", 3, member(3, nickname=None)),
        ("board-detail", 13, b"{}"),
    ],
)
def test_bad_record_is_a_reject_and_nothing_else_is(topics, topic, key, value):
    bad = Place(topic, 0, topics.add(topic, key, value))
    assert broken(topics, seen(row(), rejects=[bad])) == set()
    assert broken(topics, seen(row())) == {"rejects_missing"}
    assert broken(topics, seen(row(), rejects=[bad, Place("board", 0, 0)])) == {"rejects_wrong"}


@pytest.mark.parametrize("seed", range(10))
def test_twenty_rounds_have_every_fault_and_the_first_has_none(seed):
    made = plans(seed, 20)
    assert (made[0], len(made)) == ((), 20)
    faults = [(fault.effect, fault.place) for plan in made for fault in plan]
    assert sorted(faults, key=str) == sorted(ONCE, key=str)
    assert all(made[1:])
    assert made == plans(seed, 20) != plans(seed + 1, 20)


def test_a_few_rounds_have_every_fault_too_and_many_more_than_once():
    assert {fault.effect for plan in plans(7, 3) for fault in plan} == set(Effect)
    assert len([fault for plan in plans(7, 100) for fault in plan]) == 99
    assert plans(7, 1) == [()]


def test_every_place_has_a_kill():
    assert {place for effect, place in ONCE if effect is Effect.DRIVER_KILLED} == {*STREAM_FAILPOINTS, None}


def test_load_delivers_all_it_made_and_the_consumer_understands_it(kafka):
    remove_topics(kafka.bootstrap_servers)  # those of another file may have other partitions
    Broker(kafka).make_topics()
    first = Load(kafka.bootstrap_servers, 7, 1, rate=2_000.0)
    second = Load(kafka.bootstrap_servers, 7, 2, rate=2_000.0, earlier=first)
    for load in (first, second):
        load.stop_after(3_000)
        load.run()
    log, reader = Log(), TopicReader(kafka.bootstrap_servers, PARTITIONS)
    for record in reader.read_on("member", "board", "board-detail"):
        log.take(record)
    assert list(reader.read_on("member", "board", "board-detail")) == []
    assert {place.topic for place in log.bad} == {"member", "board", "board-detail"}
    assert {key // KEYS_A_ROUND for key in (*log.members, *log.boards)} == {1, 2}
    assert any(version.deleted for versions in log.boards.values() for version in versions)
    strangers = {person.id for load in (first, second) for person in load.strangers}
    assert {key in log.members for key in strangers} == {True, False}, "some of the first round come in the second"
    assert log.known, "boards say which member record came before them"
