"""Every reader of a time gives one result for one text: the gateway, Python, Arrow and PostgreSQL."""

import dataclasses
import datetime as dt
import json

import jsonschema
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.fields import Field
from include.contracts.pipelines import BOARD, BOARD_DETAIL
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import Reject, is_timestamp, parse_timestamp, violations
from include.contracts.versions import version_in
from include.gateway.intake import Intake, Rejected
from spark_jobs.decoding.arrow import RawColumns, accepted_times, array
from spark_jobs.decoding.reference import read_record
from spark_jobs.speed.joiner import Joiner
from spark_jobs.speed.served_batch import DetailDecoder
from tests.agreement.records.test_any_record_twin import raw
from tests.fakes.events import board
from tests.support.any_record import AnyRecord, Message
from tests.support.examples import examples
from tests.support.pipeline import migrated, rows
from tests.support.serving import opened_store
from tests.support.spark import encoded
from tests.support.times import WRITTEN, Time, times

SCHEMA = jsonschema.Draft202012Validator(Field("at", "at", "timestamp", "A time.").json_schema())
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LISTS = st.lists(times(), min_size=60, max_size=120)
LAST_MS = 9_214_646_399_999  # of the contract
UNBOUNDED = dataclasses.replace(BOARD, clock_tolerance=None)  # with an offset, a version may be of 2262 in UTC


def instant(microseconds):
    return None if microseconds is None else EPOCH + dt.timedelta(microseconds=microseconds)


def of_boards(drawn):
    """A record of the stream for each time, which is in a field and in the header of the time of acceptance."""
    return [AnyRecord("board", b"%d" % number, encoded(board(number, createdAt=each.text)),
                      [(h.ACCEPTED_AT, each.text.encode())], LAST_MS)
            for number, each in enumerate(drawn)]  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(drawn=times())
def test_gateway_and_single_records(drawn):
    hold_single(drawn)


@pytest.mark.parametrize("given_time", WRITTEN, ids=lambda each: each.text)
def test_gateway_and_single_records_of_each_rule(given_time):
    hold_single(given_time)


def hold_single(drawn: Time):
    at = instant(drawn.microseconds)
    value = board(1, createdAt=drawn.text, modifiedAt=drawn.text)
    found = violations(BOARD, value)
    assert [breach.problem for breach in found] == ([] if at else [drawn.problem] * 2), drawn
    assert all(breach.remedy for breach in found)
    assert is_timestamp(drawn.text) == (at is not None)
    assert h.accepted_at(drawn.text.encode()) == (drawn.text if at else None)
    assert version_in(encoded(value), BOARD) == at
    read = read_record(Message(AnyRecord("board", b"1", encoded(value), (), LAST_MS), 0), UNBOUNDED)
    if at is None:
        assert isinstance(read, Reject)
        assert drawn.problem in read.reason
        assert json.loads(read.value)["createdAt"] == drawn.text
    else:
        assert parse_timestamp(drawn.text) == read.values["created_at_"] == read.version_at == at
        assert SCHEMA.is_valid(drawn.text)


@settings(max_examples=100, deadline=None)
@given(drawn=LISTS)
@example(drawn=list(WRITTEN))
def test_columns(drawn):
    columns = RawColumns(BOARD, {"created_at_"})
    found, rejects = columns.read(raw(of_boards(drawn)))
    read = dict(zip(found["offset"].to_pylist(), found["created_at_"].to_pylist(), strict=True))
    right = {number: instant(each.microseconds) for number, each in enumerate(drawn) if each.microseconds is not None}
    assert read == right
    assert {reject.offset: reject.reason.split(": ")[0] for reject in rejects} == {
        number: "/createdAt" for number in range(len(drawn)) if number not in right
    }
    if any(each.problem for each in drawn):  # a chunk in which a date does not exist is read one by one
        columns = RawColumns(BOARD, {"created_at_"})
        columns.read(raw(of_boards([each for each in drawn if not each.problem])))
    assert columns.looked_at == 0  # nothing right takes the slow path


@settings(max_examples=100, deadline=None)
@given(drawn=LISTS, before=st.sampled_from([b"", b" "]))
@example(drawn=list(WRITTEN), before=b"")
@example(drawn=list(WRITTEN), before=b" ")
def test_the_join(drawn, before):
    """Texts stay as they were sent. A value after a blank takes the slow path."""
    boards = [each._replace(value=before + each.value) for each in of_boards(drawn)]
    decoded = Joiner(PIPELINE, "Asia/Seoul").decode(raw(boards))
    names = ("offset", "created_at_", "created_at__text", "accepted_at", "accepted_text")
    right = [(number, each) for number, each in enumerate(drawn) if each.microseconds is not None]
    assert decoded.rows.select(names).to_pylist() == [
        dict(zip(names, (number, *(instant(each.microseconds), each.text) * 2), strict=True)) for number, each in right
    ]
    texts, instants = accepted_times(array(raw(boards)["headers"]))
    assert texts.to_pylist() == [None if each.microseconds is None else each.text for each in drawn]
    assert instants.to_pylist() == [instant(each.microseconds) for each in drawn]


@pytest.mark.parametrize("given_time", WRITTEN, ids=lambda each: each.text)
def test_a_time_of_acceptance_by_itself(given_time):
    """Beside a text that Arrow cannot convert, all are read one by one."""
    texts, instants = accepted_times(array(raw(of_boards([given_time]))["headers"]))
    at = instant(given_time.microseconds)
    assert (texts.to_pylist(), instants.to_pylist()) == ([given_time.text if at else None], [at])


@pytest.fixture(scope="module")
def pipeline(postgres, tmp_path_factory):
    return migrated(None, postgres, "times", tmp_path_factory.mktemp("times"))


@examples(1, 8, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(drawn=LISTS)
@example(drawn=list(WRITTEN))
def test_postgresql(pipeline, drawn):
    """The live table has what the stream serves: the output topic has the text as it was sent."""
    rows(pipeline, "TRUNCATE detail_live, offset_ledger, reject, day_publication CASCADE")
    details = [
        AnyRecord("board-detail", b"%d" % number, encoded({
            "boardId": number, "memberId": 7, "nickname": "n", "title": "t", "body": "b", "createdAt": each.text,
            "modifiedAt": each.text}), [("board-at", b"board/0/%d" % number)])
        for number, each in enumerate(drawn)
    ]  # fmt: skip
    store = opened_store(pipeline)
    try:
        written = store.apply(DetailDecoder(PIPELINE, "Asia/Seoul").read(raw(details)))
    finally:
        store.close()
    assert len(written.rejects) == sum(each.microseconds is None for each in drawn)
    served = rows(pipeline, "SELECT board_id, created_at, modified_at FROM detail_live ORDER BY board_id")
    assert served == [(number, instant(each.microseconds), instant(each.microseconds))
                      for number, each in enumerate(drawn) if each.microseconds is not None]  # fmt: skip
    assert BOARD_DETAIL.version_field == "modifiedAt"


def test_the_gateway_names_the_limit_that_a_time_exceeds():
    admitted = Intake.admit(None, BOARD, board(1, createdAt="2026-06-30T23:59:60Z"), "e-1", plain=True)
    assert isinstance(admitted, Rejected)
    (found,) = admitted.details
    assert str(found) == (
        "/createdAt: second 60: databases cannot store leap seconds; give second 59, or second 00 of the next minute"
    )
