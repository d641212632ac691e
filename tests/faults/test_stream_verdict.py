"""The checker is checked: each thing that must not happen is made to happen, and seen. So are the plan and the load."""

import datetime as dt
import json
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError

from include.contracts.pipelines import PIPELINES
from include.runtime.failpoints import STREAM_FAILPOINTS, TRANSACTION_FAILPOINTS
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.fakes.events import AT
from tests.faults import stream_topics
from tests.faults.stream_load import KEYS_A_ROUND, Load, impossible_values
from tests.faults.stream_plan import ONCE, Effect, impossible_effects, plans
from tests.faults.stream_topics import KNOWN, REPLACED_BY, Log, Place, Record, TopicReader
from tests.faults.stream_verdict import Row, Seen, judge
from tests.support.broker import PARTITIONS, Broker, remove_topics
from tests.support.orders import ORDERS
from tests.support.records import content, content_of, value_of

BOARDS = PIPELINES["board_detail"]
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
EARLIER, LATER = "2026-11-19T00:00:00.000Z", "2026-11-20T10:30:00.000Z"


class Topics:
    """A log that is written record by record, each topic with one partition."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.log = Log(pipeline)
        self._next = {}
        self._values = {}

    def add(self, topic, key, value, **headers):
        """Append a record; returns its offset."""
        offset = self._next.get(topic.name, 0)
        self._next[topic.name] = offset + 1
        self._values[topic.name, offset] = value
        encoded = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        named = {name.replace("_", "-"): str(text) for name, text in headers.items()}
        self.log.take(Record(Place(topic.name, 0, offset), str(key).encode(), encoded, named, NOW))
        return offset

    def add_table(self, key, number=0, at=AT):
        """Append a record of the table, whose number makes its content; returns its offset."""
        return self.add(self.pipeline.table, key, value_of(self.pipeline.table, key, number, at))

    def add_stream(self, key, of, number=0, at=AT, **headers):
        """Append a record of the stream that joins the key `of`."""
        value = value_of(self.pipeline.stream, key, number, at) | {self.pipeline.join_field: of}
        return self.add(self.pipeline.stream, key, value, **headers)

    def delete(self, key, at=None):
        """Append a deletion to the stream."""
        return self.add(self.pipeline.stream, key, None, **({"accepted_at": at} if at else {}))

    def next_of_stream(self, offset):
        """Set the offset of the stream's next record."""
        self._next[self.pipeline.stream.name] = offset

    def add_detail(self, key, stream_offset, table_offset=None, **more):
        """Add the record that the join sends for a record of the stream."""
        joined = (self.pipeline.stream, stream_offset), (self.pipeline.table, table_offset)
        headers = {
            topic.source_header: f"{topic.name}/0/{offset}" for topic, offset in joined if offset is not None
        }  # fmt: skip
        return self.add(self.pipeline.output, key, b"{}", **headers, **more)

    def row(self, key=10, source=0, joined=0, detail=0):
        """Return the row that is made of the records with these offsets."""
        contents = {}
        for side, topic, offset in (
            ("stream", self.pipeline.stream, source), ("table", self.pipeline.table, joined)
        ):  # fmt: skip
            contents[side] = content_of(self.pipeline, side, self._values.get((topic.name, offset)) or {})
        return Row(key, (0, source), (0, joined), (0, detail), contents["stream"], contents["table"])


def seen(*rows, pending=None, rejects=()):
    waiting = {key: {(0, offset) for offset in offsets} for key, offsets in (pending or {}).items()}
    return Seen(list(rows), waiting, set(rejects))


def broken(topics, what, before=()):
    return set(judge(topics.log, what, {each.key: each for each in before}).faults)


@pytest.fixture(params=PIPELINES.values(), ids=[*PIPELINES])
def topics(request):
    """Key 1 of the table and record 10 of the stream, joined."""
    made = Topics(request.param)
    made.add_table(1)
    made.add_stream(10, 1)
    made.add_detail(10, 0, 0)
    return made


def test_all_is_well(topics):
    verdict = judge(topics.log, seen(topics.row()), {10: topics.row()})
    assert verdict.faults == {}
    assert (verdict.keys, verdict.rows, verdict.duplicates) == (1, 1, 0)


def test_of_a_topic_made_again_the_newer_record_counts(topics):
    topics.add(topics.pipeline.stream, 10, b"broken")
    topics.log.replace_stream("former")
    former = (-1, -REPLACED_BY)
    kept = topics.row()._replace(source=former)
    rejected = [Place(f"{topics.pipeline.stream.name}@former", 0, 1)]
    assert broken(topics, seen(kept, rejects=rejected)) == set()
    topics.next_of_stream(0)
    topics.add_stream(10, 1)
    topics.add_detail(10, 0, 0)
    assert broken(topics, seen(kept, rejects=rejected)) == {"outdated"}
    assert broken(topics, seen(topics.row(detail=1), rejects=rejected)) == set()


def test_of_a_topic_made_again_an_event_that_is_sent_again_is_the_same(topics):
    topics.add_stream(12, 1, 1, event_id="twelve")
    topics.add_detail(12, 1, 0, event_id="twelve")
    rows = [topics.row(), topics.row(12, source=1, detail=1)]
    topics.log.replace_stream("former")
    rows = [row._replace(source=(-1, row.source[1] - REPLACED_BY)) for row in rows]
    topics.next_of_stream(0)
    topics.add(topics.pipeline.table, 1, None, accepted_at=LATER)
    topics.add_stream(12, 1, 1, event_id="twelve", **{KNOWN: 1})
    assert broken(topics, seen(*rows)) == set(), "joined before, and a copy is no newer version"
    assert broken(topics, seen(rows[0], pending={12: [0]})) == set(), "the first one was never taken"
    assert broken(topics, seen(rows[0])) == {"pending_missing"}
    topics.add_stream(12, 1, 1, event_id="another", **{KNOWN: 1})
    assert broken(topics, seen(*rows)) == {"pending_missing"}, "another event of the same time is a newer version"
    assert broken(topics, seen(rows[0], pending={12: [1]})) == set(), "of events of one time either may wait"
    assert broken(topics, seen(rows[0], pending={12: [0]})) == set()


def test_places_of_two_former_topics_are_told_apart_by_their_events(topics):
    topics.add_stream(12, 1, 1, event_id="twelve")
    topics.add_detail(12, 1, 0, event_id="twelve")
    shown = topics.row(12, source=1, detail=1)
    topics.log.replace_stream("first")
    topics.next_of_stream(0)
    topics.add_stream(10, 1)
    topics.add_detail(10, 0, 0)
    topics.add_stream(12, 1, 2, EARLIER, event_id="older")
    first = topics.row(detail=2)._replace(source=(-1, -REPLACED_BY))
    topics.log.replace_stream("second")
    former = shown._replace(source=(-1, 1 - REPLACED_BY))
    assert broken(topics, seen(first, former)) == set()


def test_of_a_topic_made_again_twice_the_row_names_the_detail_of_the_second(topics):
    topics.log.replace_stream("first")
    topics.next_of_stream(0)
    topics.add_stream(10, 1)
    topics.add_detail(10, 0, 0)
    topics.log.replace_stream("second")
    former = topics.row(detail=1)._replace(source=(-1, -REPLACED_BY))
    assert broken(topics, seen(former)) == set()
    assert broken(topics, seen(former._replace(detail=(0, 0)))) == {"wrong_place"}


def test_of_a_topic_made_again_twice_two_keys_may_be_named_alike(topics):
    topics.log.replace_stream("first")
    former, first = (-1, -REPLACED_BY), topics.row()
    topics.next_of_stream(0)
    topics.add_stream(11, 1, 1)
    topics.add_detail(11, 0, 0)
    topics.log.replace_stream("second")
    second = topics.row(11, detail=1)
    assert broken(topics, seen(first._replace(source=former), second._replace(source=former))) == set()


def test_of_a_topic_made_again_twice_two_events_of_a_key_with_one_place_are_each_sent_once(topics):
    for former in ("first", "second"):
        topics.next_of_stream(1)
        topics.add_stream(12, 1, event_id=former)
        topics.add_detail(12, 1, 0, event_id=former)
        topics.log.replace_stream(former)
    assert judge(topics.log, seen(topics.row()), {}, is_exactly_once=True).sent_twice == []


def test_record_that_is_not_shown_is_lost(topics):
    assert broken(topics, seen()) == {"lost"}


def test_record_that_waits_although_the_table_has_its_key_is_lost_and_left(topics):
    assert broken(topics, seen(pending={10: [0]})) == {"lost", "pending_left"}


def test_two_rows_of_a_key_are_doubled(topics):
    assert broken(topics, seen(topics.row(), topics.row())) == {"doubled"}


def test_row_without_a_record_is_made_up(topics):
    assert "made_up" in broken(topics, seen(topics.row(), topics.row(11)))
    assert "made_up" in broken(topics, seen(topics.row()._replace(source=(0, 7))))
    assert "made_up" in broken(topics, seen(topics.row()._replace(joined=(0, 7))))


def test_older_version_is_outdated(topics):
    topics.add_stream(10, 1, 1, LATER)
    topics.add_detail(10, 1, 0)
    assert broken(topics, seen(topics.row())) == {"outdated"}
    assert broken(topics, seen(topics.row(source=1, detail=1))) == set()


def test_old_version_that_came_later_must_not_be_shown(topics):
    topics.add_stream(10, 1, 1, EARLIER)
    topics.add_detail(10, 1, 0)
    assert broken(topics, seen(topics.row())) == set()
    assert broken(topics, seen(topics.row(source=1, detail=1))) == {"outdated"}


def test_deleted_record_must_not_be_shown(topics):
    topics.delete(10, LATER)
    assert broken(topics, seen(topics.row())) == {"outdated"}
    assert broken(topics, seen()) == set()


def test_deletion_without_a_time_counts_from_its_record(topics):
    topics.delete(10)
    assert broken(topics, seen()) == set()


def test_late_deletion_deletes_nothing_newer(topics):
    topics.delete(10, EARLIER)
    assert broken(topics, seen(topics.row())) == set()


def test_joined_version_that_was_superseded_before_the_record_was_sent_is_wrong(topics):
    newer = topics.add_table(1, 1, LATER)
    topics.add_stream(11, 1, **{KNOWN: newer})
    topics.add_detail(11, 1, 0)
    topics.add_detail(11, 1, 1)
    old = topics.row(11, source=1, detail=1)
    assert broken(topics, seen(topics.row(), old)) == {"wrong_joined"}
    assert broken(topics, seen(topics.row(), old._replace(joined=(0, 1)))) == {"wrong_content", "wrong_place"}


def test_joined_version_that_was_superseded_meanwhile_may_be_either(topics):
    topics.add_table(1, 1, LATER)
    assert broken(topics, seen(topics.row())) == set()
    topics.log.details[0] = topics.log.details[0]._replace(joined=(0, 1))
    assert broken(topics, seen(topics.row(joined=1))) == set()


def test_record_of_another_key_of_the_table_is_wrong(topics):
    topics.add_table(2, 1)
    topics.log.details[0] = topics.log.details[0]._replace(joined=(0, 1))
    assert broken(topics, seen(topics.row(joined=1))) == {"wrong_joined"}


def test_replayed_version_of_the_table_is_wrong(topics):
    topics.add_table(1, 1, EARLIER)
    topics.log.details[0] = topics.log.details[0]._replace(joined=(0, 1))
    assert broken(topics, seen(topics.row(joined=1))) == {"wrong_joined"}


@pytest.mark.parametrize("side", ["stream", "table"])
def test_other_content_than_that_of_the_records_is_wrong(topics, side):
    other = content_of(topics.pipeline, side, value_of(getattr(topics.pipeline, side), 10, 1))
    assert broken(topics, seen(topics.row()._replace(**{f"{side}_content": other}))) == {"wrong_content"}


@pytest.mark.parametrize("pipeline", [*PIPELINES.values(), ORDERS], ids=[*PIPELINES, "every type"])
def test_another_value_in_any_column_is_other_content(pipeline):
    for side in ("stream", "table"):
        value = value_of(getattr(pipeline, side), 1, 1)
        for column in [each for each in pipeline.columns if each.side == side]:
            other = {"string": "x", "long": 99, "boolean": None, "decimal": "0.5", "date": EARLIER[:10],
                     "timestamp": EARLIER}[pipeline.output.field(column.output).type]  # fmt: skip
            changed = content_of(pipeline, side, value | {column.source: other})
            assert changed != content_of(pipeline, side, value), column


def test_content_is_the_same_in_a_record_and_in_postgresql():
    orders, seoul = PIPELINES["order_detail"], dt.timezone(dt.timedelta(hours=9))
    value = value_of(orders.stream, 1, 1) | {"amount": "12.5", "dueOn": "2026-12-20", "orderedAt": AT, "note": None}
    row = {orders.column_name(column): value[column.source] for column in orders.columns if column.side == "stream"}
    row |= {"amount": Decimal("12.50"), "due_on": dt.date(2026, 12, 20),
            "ordered_at": dt.datetime(2026, 11, 20, 18, 30, tzinfo=seoul)}  # fmt: skip
    assert content(orders, "stream", row) == content_of(orders, "stream", value)


def test_row_must_name_the_first_record_it_came_by(topics):
    topics.add_detail(10, 0, 0)
    assert broken(topics, seen(topics.row())) == set()
    assert broken(topics, seen(topics.row(detail=1))) == {"wrong_place"}
    assert judge(topics.log, seen(topics.row()), {}).duplicates == 1


def test_settled_row_must_not_change_without_a_newer_version(topics):
    topics.add_table(1, 1, LATER)
    assert broken(topics, seen(topics.row()), before=[topics.row(joined=1, detail=1)]) == {"changed"}
    topics.add_stream(10, 1, 1, LATER)
    topics.add_detail(10, 1, 1)
    newer = topics.row(source=1, joined=1, detail=1)
    assert broken(topics, seen(newer), before=[topics.row()]) == set()


@pytest.fixture
def waiting(topics):
    """Record 12, whose key the table does not have."""
    topics.add_stream(12, 9)
    return topics


def test_record_of_an_unknown_key_waits(waiting):
    assert broken(waiting, seen(waiting.row(), pending={12: [1]})) == set()
    assert broken(waiting, seen(waiting.row())) == {"pending_missing"}


def test_record_waits_no_more_when_its_key_came(waiting):
    waiting.add_table(9)
    assert broken(waiting, seen(waiting.row(), pending={12: [1]})) == {"lost", "pending_left"}


def test_record_of_a_deleted_key_waits_unless_it_was_joined_before(topics):
    topics.add(topics.pipeline.table, 1, None, accepted_at=LATER)
    assert broken(topics, seen(topics.row())) == set(), "joined before"
    assert broken(topics, seen(pending={10: [0]})) == set(), "joined after"
    assert broken(topics, seen(topics.row(), pending={10: [0]})) == {"pending_left"}
    topics.add_stream(11, 1, **{KNOWN: 1})
    assert broken(topics, seen(topics.row())) == {"pending_missing"}


def test_deleted_record_does_not_wait(waiting):
    waiting.delete(12, LATER)
    assert broken(waiting, seen(waiting.row(), pending={12: [1]})) == {"pending_left"}
    assert broken(waiting, seen(waiting.row())) == set()


def test_version_that_waits_hides_the_older_one(topics):
    topics.add_stream(10, 9, 1, LATER)
    assert broken(topics, seen(pending={10: [1]})) == set()
    assert broken(topics, seen(topics.row(), pending={10: [1]})) == {"outdated"}
    assert broken(topics, seen(topics.row())) == {"pending_missing"}
    assert broken(topics, seen()) == {"lost", "pending_missing"}
    assert broken(topics, seen(pending={10: [0, 1]})) == {"pending_left"}


def test_old_version_does_not_wait_when_a_newer_one_is_shown(topics):
    topics.add_stream(10, 9, 1, EARLIER)
    assert broken(topics, seen(topics.row(), pending={10: [1]})) == {"pending_left"}
    assert broken(topics, seen(topics.row())) == set()


@pytest.mark.parametrize("side", ["stream", "table"])
def test_version_or_deletion_of_tomorrow_is_a_reject_and_has_no_effect(topics, side):
    topic, tomorrow = getattr(topics.pipeline, side), "2026-11-22T00:00:00.000Z"
    key = 10 if side == "stream" else 1
    value = value_of(topic, key, 5) | {topic.version_field: tomorrow}
    bad = [Place(topic.name, 0, topics.add(topic, key, value)),
           Place(topic.name, 0, topics.add(topic, key, None, accepted_at=tomorrow))]  # fmt: skip
    assert broken(topics, seen(topics.row(), rejects=bad)) == set()
    assert broken(topics, seen(topics.row())) == {"rejects_missing"}
    assert "lost" in broken(topics, seen(rejects=bad))


@pytest.mark.parametrize(
    ("side", "key", "make"),
    [
        ("stream", 13, lambda good, _: b"{nonsense"),
        ("stream", 13, lambda good, _: b"\xff"),
        ("stream", 13, lambda good, pipeline: good | {pipeline.join_field: "nobody"}),
        ("stream", 13, lambda good, pipeline: good | {pipeline.stream.key_field: 14}),
        ("stream", 13, lambda good, _: [good]),
        ("stream", "x", lambda good, _: None),
        ("table", 13, lambda good, pipeline: good | {pipeline.table.version_field: None}),
        ("output", 13, lambda good, _: b"{}"),
    ],
)
def test_bad_record_is_a_reject_and_nothing_else_is(topics, side, key, make):
    topic = getattr(topics.pipeline, side)
    bad = Place(topic.name, 0, topics.add(topic, key, make(value_of(topic, 13), topics.pipeline)))
    good = Place(topics.pipeline.stream.name, 0, 0)
    assert broken(topics, seen(topics.row(), rejects=[bad])) == set()
    assert broken(topics, seen(topics.row())) == {"rejects_missing"}
    assert broken(topics, seen(topics.row(), rejects=[bad, good])) == {"rejects_wrong"}


@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE, EXACTLY_ONCE])
@pytest.mark.parametrize("seed", range(10))
def test_twenty_rounds_have_every_fault_and_the_first_has_none(seed, delivery):
    made = plans(BOARDS, seed, 20, delivery=delivery)
    assert (made[0], len(made)) == ((), 20)
    faults = [(fault.effect, fault.place) for plan in made for fault in plan]
    # a driver with at-least-once delivery comes to no place of a transaction
    possible = [each for each in ONCE if delivery == EXACTLY_ONCE or each[1] not in TRANSACTION_FAILPOINTS]
    assert sorted(faults, key=str) == sorted(possible, key=str)
    assert all(made[1:])
    assert made == plans(BOARDS, seed, 20, delivery=delivery) != plans(BOARDS, seed + 1, 20, delivery=delivery)


def test_a_record_that_is_sent_twice_breaks_exactly_once_delivery_alone(topics):
    assert judge(topics.log, seen(topics.row()), {}, is_exactly_once=True).faults == {}
    topics.add_detail(10, 0, 0)
    assert broken(topics, seen(topics.row())) == set()
    assert judge(topics.log, seen(topics.row()), {}, is_exactly_once=True).faults.keys() == {"sent_twice"}


def test_a_few_rounds_have_every_fault_too_and_many_more_than_once():
    for delivery, absent in ((AT_LEAST_ONCE, {Effect.COMMIT_UNANSWERED}), (EXACTLY_ONCE, set())):
        few = plans(BOARDS, 7, 3, delivery=delivery)
        assert {fault.effect for plan in few for fault in plan} == {*Effect} - absent
    assert len([fault for plan in plans(BOARDS, 7, 100) for fault in plan]) == 99
    assert plans(BOARDS, 7, 1) == [()]


def test_rounds_may_have_every_fault_of_a_name():
    none, *made = plans(BOARDS, 7, 4, "driver (killed|frozen).* at (transaction|page)", EXACTLY_ONCE, True)
    wanted = [
        (Effect.COMMIT_UNANSWERED, "transaction.before_commit"),
        *((Effect.DRIVER_KILLED, place) for place in TRANSACTION_FAILPOINTS),
        *((Effect.DRIVER_FROZEN, place) for place in TRANSACTION_FAILPOINTS),
    ]
    assert none == ()
    for plan in made:
        assert sorted(((fault.effect, fault.place) for fault in plan), key=str) == sorted(wanted, key=str)
    assert len({*made}) == 3


def test_every_place_has_a_kill():
    assert {place for effect, place in ONCE if effect is Effect.DRIVER_KILLED} == {*STREAM_FAILPOINTS, None}


def test_faults_and_values_that_a_pipeline_cannot_have_are_named_and_left_out():
    assert {name: impossible_effects(each) for name, each in PIPELINES.items()} == {name: {} for name in PIPELINES}
    assert impossible_effects(ORDERS) == {Effect.LARGE_RECORDS: "the strings of order have 200 characters at most"}
    few = plans(ORDERS, 7, 3, delivery=EXACTLY_ONCE)
    assert {fault.effect for plan in few for fault in plan} == {*Effect} - {Effect.LARGE_RECORDS}
    assert [*impossible_values(BOARDS)] == ["bad boolean", "bad date", "bad decimal"]
    assert impossible_values(ORDERS) == {}


class Arriving:
    """A consumer of two partitions with a record each, to whose first one another record comes while they are read."""

    ends: ClassVar = {0: 1, 1: 1}

    def assign(self, places):
        self.start = {each.partition: each.offset for each in places}

    def get_watermark_offsets(self, place, timeout):
        return 0, self.ends[place.partition]

    def consume(self, count, timeout):
        while self.start:
            partition = min(self.start)
            offset = self.start[partition]
            if partition == 0:
                self.ends[0] = 2
            at_end = offset >= self.ends[partition]
            self.start = {p: at + (p == partition) for p, at in self.start.items() if not (p == partition and at_end)}
            return [Arrived(partition, offset, KafkaError(KafkaError._PARTITION_EOF) if at_end else None)]
        return []


@dataclass(frozen=True)
class Arrived:
    """A message, or the end of a partition."""

    at: int
    position: int
    error_: KafkaError | None

    topic = staticmethod(lambda: "board-detail")
    key = value = staticmethod(lambda: b"{}")
    timestamp = staticmethod(lambda: (1, 0))

    def headers(self):
        return []

    def partition(self):
        return self.at

    def offset(self):
        return self.position

    def error(self):
        return self.error_


def test_a_record_that_comes_while_its_partition_is_read_is_read_once(monkeypatch):
    monkeypatch.setattr(stream_topics, "_consumer", lambda servers: nullcontext(Arriving()))
    reader = TopicReader("", 2)
    assert [record.place[1:] for record in reader.read_on("board-detail")] == [(0, 0), (0, 1), (1, 0)]
    assert list(reader.read_on("board-detail")) == []


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=[*PIPELINES])
def test_load_delivers_all_it_made_and_the_consumer_understands_it(kafka, pipeline):
    remove_topics(kafka.bootstrap_servers)  # those of the other pipeline's case
    Broker(kafka).make_topics()
    first = Load(pipeline, kafka.bootstrap_servers, 7, 1, rate=2_000.0)
    second = Load(pipeline, kafka.bootstrap_servers, 7, 2, rate=2_000.0, earlier=first)
    for load in (first, second):
        load.stop_after(3_000)
        load.run()
    log, reader = Log(pipeline), TopicReader(kafka.bootstrap_servers, PARTITIONS)
    topics = [topic.name for topic in (pipeline.table, pipeline.stream, pipeline.output)]
    for record in reader.read_on(*topics):
        log.take(record)
    assert list(reader.read_on(*topics)) == []
    assert {place.topic for place in log.bad} == {*topics}
    assert {key // KEYS_A_ROUND for key in (*log.table, *log.stream)} == {1, 2}
    assert any(version.deleted for versions in log.stream.values() for version in versions)
    unknown = {of.key for load in (first, second) for of in load.unknown}
    assert {key in log.table for key in unknown} == {True, False}, "some of the first round come in the second"
    assert log.known, "records of the stream say which record of the table came before them"
