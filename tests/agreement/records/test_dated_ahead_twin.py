"""A version may not be later than the time of its record by more than the tolerance: one rule for every reader.

The rule is written once more here, in integers. Records are drawn around its borders: with a timestamp and
without, with and without the time of acceptance, values and deletions.
"""

import dataclasses
import datetime as dt
import json
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.clock import epoch_ms, rfc3339
from include.contracts.definition import FOLDER
from include.contracts.errors import ContractMismatch
from include.contracts.pipelines import BOARD, load_definition
from include.contracts.validation import Reject
from include.gateway.broker_clock import BrokerClock
from include.gateway.intake import Intake, Rejected, accepted_at
from include.gateway.unpublished_rows import version_of
from spark_jobs.decoding.arrow import RawColumns, table_schema
from spark_jobs.decoding.dated_rows import DatedRows, VersionRows
from spark_jobs.decoding.reference import read_record
from spark_jobs.speed.join import _raw
from spark_jobs.speed.joiner import Joiner
from spark_jobs.speed.pending_store import StoredRecord
from tests.agreement.records.test_any_record_twin import PIPELINES, RAW_TOPICS, newest, numbered, raw
from tests.fakes.events import board
from tests.fakes.gateway import FixedClock
from tests.support.any_record import AnyRecord, Message, twisted

NOW_MS = 1_795_167_000_000
HOUR_US = 3_600_000_000
TOLERANCE_US, MARGIN_US = 300_000_000, 10_000_000
YEARS_MS = 0, 9_214_646_400_000  # 1970 to the end of 2261
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ZONE = "Asia/Seoul"


class Bounded(NamedTuple):
    """A record that keeps its contract but for its version, and whether that is within the bound."""

    record: AnyRecord
    is_right: bool


def text_of(microseconds, hours=0):
    """An RFC 3339 text of the instant, at an offset of so many hours."""
    at = EPOCH + dt.timedelta(microseconds=microseconds)
    zone = dt.timezone(dt.timedelta(hours=hours))
    return at.astimezone(zone).isoformat(timespec="microseconds").replace("+00:00", "Z")


def made(topic, number, version_us, ms, accepted, hours=0):
    """A record with a version, None for a tombstone; `ms` is Kafka's timestamp, `accepted` in microseconds or text."""
    text = text_of(accepted).encode() if isinstance(accepted, int) else accepted
    is_time = isinstance(accepted, int) and 0 <= accepted < YEARS_MS[1] * 1000
    headers = [] if accepted is None else [(h.ACCEPTED_AT, text)]
    value = None
    if version_us is not None:
        plain = json.loads(twisted(topic)[0].value)
        plain |= {topic.key_field: number, topic.version_field: text_of(version_us, hours)}
        value = json.dumps(plain).encode()
    record = AnyRecord(topic.name, b"%d" % number, value, headers, ms)
    return Bounded(record, is_right(version_us, ms, accepted if is_time else None))


def is_right(version_us, ms, accepted_us):
    """The rule."""
    first, end = YEARS_MS
    accepted_ms = None if accepted_us is None else accepted_us // 1000
    times = [ms] if first <= ms < end else []
    if accepted_ms is not None and first <= accepted_ms < end and not times:
        times.append(accepted_ms)
    if version_us is None:
        version_us = accepted_us if accepted_us is not None else times[0] * 1000 if times else None
    return bool(times) and version_us is not None and version_us - times[0] * 1000 <= TOLERANCE_US


DISTANCES_US = st.one_of(
    st.sampled_from([0, 1, 999, 1_000, -1, -1_000, 9 * HOUR_US, 24 * HOUR_US, 174 * 365 * 24 * HOUR_US, -24 * HOUR_US]),
    st.integers(-2_000, 2_000),
)
STAMPS_MS = st.one_of(
    st.just(NOW_MS), st.just(NOW_MS), st.integers(NOW_MS - 3_600_000, NOW_MS + 3_600_000),
    st.sampled_from([-1, 0, 1, YEARS_MS[1] - 1, YEARS_MS[1], 2**62, -(2**62), NOW_MS + 86_400_000 * 3]),
)  # fmt: skip
ACCEPTED = st.one_of(
    st.none(), st.integers(-2_000, 2_000).map(lambda near: NOW_MS * 1000 + near),
    st.integers(-3 * HOUR_US, 3 * HOUR_US).map(lambda near: NOW_MS * 1000 + near),
    st.sampled_from([-1, 0, YEARS_MS[1] * 1000 - 1, b"gestern", b"", b"\xff"]),
)  # fmt: skip


@st.composite
def bounded(draw, topic, number):
    """Draw a record: its version lies around the border of the time of acceptance, of the stamp or of another time."""
    ms = draw(STAMPS_MS)
    accepted = draw(ACCEPTED)
    around = draw(st.sampled_from([NOW_MS * 1000, ms * 1000, accepted if isinstance(accepted, int) else 0]))
    version_us = around + draw(st.sampled_from([0, TOLERANCE_US])) + draw(DISTANCES_US)
    version_us = max(0, min(version_us, YEARS_MS[1] * 1000 - 15 * HOUR_US))  # with any offset in the years
    is_tombstone = draw(st.integers(0, 3)) == 0
    return made(topic, number, None if is_tombstone else version_us, ms, accepted, draw(st.sampled_from([0, 0, 9])))


LISTS = st.sampled_from(RAW_TOPICS).flatmap(
    lambda topic: st.tuples(st.just(topic), st.tuples(*[bounded(topic, number) for number in range(16)]))
)


def of_the_issue(topic):
    """Each kind by itself: what is accepted first, then what is not."""
    now_us = NOW_MS * 1000
    ahead, year_2200 = now_us + TOLERANCE_US, 7_258_118_400_000_000
    return topic, tuple(
        made(topic, number, *each)
        for number, each in enumerate([
            (ahead, NOW_MS, None), (ahead, NOW_MS, now_us), (now_us - HOUR_US, NOW_MS, None, 9), (None, NOW_MS, None),
            (None, NOW_MS, ahead), (ahead, -1, now_us), (None, -1, now_us),
            (ahead + 1, NOW_MS, None), (ahead + 1, NOW_MS, now_us), (year_2200, NOW_MS, None),
            (year_2200, NOW_MS, year_2200),  # a header cannot raise the bound
            (now_us + 9 * HOUR_US, NOW_MS, now_us), (None, NOW_MS, ahead + 1), (None, NOW_MS, year_2200),
            (ahead, -1, None), (year_2200, -1, None), (ahead + 1, -1, now_us), (None, -1, None),
        ])
    )  # fmt: skip


EACH_TOPIC = pytest.mark.parametrize("topic", RAW_TOPICS, ids=lambda topic: topic.name)


@EACH_TOPIC
def test_the_oracle_has_both_kinds(topic):
    _, drawn = of_the_issue(topic)
    assert [each.is_right for each in drawn] == [True] * 7 + [False] * 11


@settings(max_examples=100, deadline=None)
@given(drawn=LISTS)
@example(drawn=of_the_issue(BOARD))
def test_single_records_columns_and_the_archive(drawn):
    hold(*drawn)


@EACH_TOPIC
def test_single_records_columns_and_the_archive_of_each_topic(topic):
    hold(*of_the_issue(topic))


def hold(topic, drawn):
    records = [each.record for each in drawn]
    right = {number for number, each in enumerate(drawn) if each.is_right}
    messages = numbered(records)
    single = [read_record(message, topic) for message in messages]
    assert {row.offset for row in single if not isinstance(row, Reject)} == right
    for one in single:
        if isinstance(one, Reject):
            place = one.reason.split(": ")[0]
            assert place in (f"/{topic.version_field}", "/headers/accepted-at", "/timestamp"), one.reason
            assert ("later than the time of the record" in one.reason) == (place != "/timestamp")
    assert {m.number for m in messages if version_of(topic, m) is not None} == right

    columns = RawColumns(topic, {topic.version_column})
    found, rejects = columns.read(raw(records))
    assert set(found["offset"].to_pylist()) == right
    reasons = {one.offset: one.reason for one in single if isinstance(one, Reject)}
    assert {reject.offset: reject.reason for reject in rejects} == reasons
    tombstones = sum(record.value is None for record in records)
    assert columns.looked_at <= len(records) - len(right) + tombstones  # nothing right takes the slow path for its time

    definition = PIPELINES[topic]
    if topic is definition.table:
        read, rejects = RawColumns(topic, table_schema(definition).names).read_messages(messages)
        assert set(read["offset"].to_pylist()) == right  # keys are apart
        assert {reject.offset for reject in rejects} == set(reasons)
        assert set(VersionRows(definition).read(raw(records))["offset"].to_pylist()) == right
    else:
        days = DatedRows(topic, definition, ZONE).add(raw(records))["day"].to_pylist()
        assert {n for n, day in enumerate(days) if day is not None} == {
            n for n in right if records[n].value is not None
        }


@settings(max_examples=100, deadline=None)
@given(drawn=LISTS.filter(lambda drawn: drawn[0] is PIPELINES[drawn[0]].stream))
@example(drawn=of_the_issue(BOARD))
def test_the_join_and_its_pending_records(drawn):
    topic, found = drawn
    joiner = Joiner(PIPELINES[topic], ZONE)
    decoded = joiner.decode(raw([each.record for each in found]))
    right = [number for number, each in enumerate(found) if each.is_right]
    assert decoded.rows["offset"].to_pylist() == right
    assert {reject.offset for reject in decoded.rejects} == set(range(len(found))) - set(right)
    (joined,) = joiner.join(decoded, newest([], PIPELINES[topic]))
    waiting = joiner.pending(decoded, joined.left)
    assert [each.offset for each in waiting] == [n for n in right if found[n].record.value is not None]
    # the records as they are read back, to be joined again
    again = joiner.decode(_raw([StoredRecord(*(getattr(each, name) for name in StoredRecord._fields))
                                  for each in waiting]))  # fmt: skip
    assert again.rows["offset"].to_pylist() == [each.offset for each in waiting]
    assert again.rows["timestamp"].to_pylist() == [epoch_ms(each.kafka_timestamp) for each in waiting]
    assert joiner.pending(again, again.rows) == waiting


@settings(max_examples=500, deadline=None)
@given(
    ahead_us=st.one_of(DISTANCES_US, DISTANCES_US.map(lambda distance: TOLERANCE_US - MARGIN_US + distance)),
    now_us=st.integers(0, 999_999).map(lambda part: NOW_MS * 1000 + part),
    hours=st.sampled_from([0, 0, 9, -7]),
    digits=st.sampled_from(["microseconds", "milliseconds", "seconds"]),
    lower=st.booleans(),
)
def test_what_the_gateway_accepts_no_reader_rejects_though_the_brokers_clock_is_behind(
    ahead_us, now_us, hours, digits, lower
):
    at = EPOCH + dt.timedelta(microseconds=now_us + ahead_us)
    zone = dt.timezone(dt.timedelta(hours=hours))
    text = at.astimezone(zone).isoformat(timespec=digits).replace("+00:00", "Z")
    text = text.lower() if lower else text
    clock = FixedClock(EPOCH + dt.timedelta(microseconds=now_us))
    agreed = BrokerClock(clock, lambda: 0)
    agreed.appended(("board", 0), epoch_ms(clock.now()), epoch_ms(clock.now()))
    intake = Intake(None, None, None, None, agreed, None, None)
    admitted = intake.admit(BOARD, board(1, modifiedAt=text), "e-1")
    accepted = accepted_at(clock.now())
    if isinstance(admitted, Rejected):
        (found,) = admitted.details
        assert (admitted.status, found.pointer) == (400, "/modifiedAt")
        assert text in found.problem
        assert f"the gateway's clock, {rfc3339(clock.now())}" in found.problem
        value = json.dumps(board(1, modifiedAt=text)).encode()
    else:
        value = admitted.value
        assert (admitted.accepted_at_ms, admitted.headers[1]) == (epoch_ms(clock.now()), accepted.header)
    # appended by a broker whose clock is behind as far as the margin goes, less far, in time, or days later
    for later_ms in (-MARGIN_US // 1000, -5_000, 0, 10 * 86_400_000):
        record = AnyRecord("board", b"1", value, [accepted.header], accepted.at_ms + later_ms)
        is_rejected = isinstance(read_record(Message(record, 0), BOARD), Reject)
        assert not is_rejected or isinstance(admitted, Rejected), later_ms
        if later_ms * 1000 == -MARGIN_US:
            assert is_rejected == isinstance(admitted, Rejected)


def definition_with(tmp_path, line):
    text = (FOLDER / "board_detail.toml").read_text(encoding="utf-8")
    path = tmp_path / "board_detail.toml"
    path.write_text(text.replace('name = "board_detail"\n', f'name = "board_detail"\n{line}\n'), encoding="utf-8")
    return load_definition(path)


def test_the_tolerance_is_a_setting_of_the_definition(tmp_path):
    definition = definition_with(tmp_path, "clock_tolerance_s = 60")
    assert definition.stream.clock_tolerance == definition.table.clock_tolerance == dt.timedelta(minutes=1)
    assert definition.output.clock_tolerance is None  # the join wrote what it had checked
    assert BOARD.clock_tolerance == dt.timedelta(minutes=5)
    record = made(BOARD, 1, NOW_MS * 1000 + TOLERANCE_US, NOW_MS, None).record
    read = read_record(Message(record, 0), definition.stream)
    assert "more than 60 s later than the time of the record" in read.reason
    assert not isinstance(read_record(Message(record, 0), dataclasses.replace(BOARD, clock_tolerance=None)), Reject)


@pytest.mark.parametrize("seconds", ["0", "59", "-1", "86401", "1.5", '"300"'])
def test_a_tolerance_without_sense_is_refused(tmp_path, seconds):
    with pytest.raises(ContractMismatch, match="clock_tolerance_s"):
        definition_with(tmp_path, f"clock_tolerance_s = {seconds}")
