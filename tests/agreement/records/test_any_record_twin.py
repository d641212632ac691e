"""All readers of records say the same of any record that a producer can put into a topic, and none of them raises.

The reader of single records, and those by the column: of changes, of the join, of the sink, of the rebuild and archive.
"""

import datetime as dt
import itertools
import json
import re
from decimal import Decimal
from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts import pipelines
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.fields import record_id
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER, TOPICS
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import MAX_DIGITS, MAX_NAME_LENGTH, Reject, parse_timestamp, suspicious
from include.contracts.versions import record_ms, record_time
from include.gateway.calls.events import decode as decode_body
from include.gateway.http.message import Fault
from include.gateway.intake import Intake, Rejected
from include.gateway.unpublished_rows import PublishedVersion, version_of
from include.kafka.record_table import record_table
from include.runtime.settings import GatewayLimits
from spark_jobs.batch.day_rows import SOURCES, CandidateReader, decide
from spark_jobs.decoding.arrow import RawColumns, event_ids, longs, table_schema, text_column
from spark_jobs.decoding.dated_rows import DatedRows, VersionRows, of_no_day, places
from spark_jobs.decoding.reference import read_record
from spark_jobs.speed.detail_records import DetailEncoder, iter_messages
from spark_jobs.speed.joiner import Joiner
from spark_jobs.speed.pending_store import PendingRecord
from spark_jobs.speed.served_batch import DetailDecoder, records_schema
from spark_jobs.state.segments import newest_of
from tests.fakes.events import member
from tests.fakes.gateway import FixedClock
from tests.support.any_record import (
    ODD_HEADER_VALUES,
    ODD_KEYS,
    ODD_VALUES,
    AnyRecord,
    Message,
    records,
    twisted,
    values,
    with_field,
)
from tests.support.examples import examples
from tests.support.orders import CUSTOMER, ORDER, ORDER_DETAIL, ORDERS
from tests.support.pipeline import migrated, rows
from tests.support.serving import opened_store
from tests.support.spark import encoded

EVERY_TOPIC = {**TOPICS, **{topic.name: topic for topic in (ORDER, CUSTOMER, ORDER_DETAIL)}}
RAW_TOPICS = (BOARD, MEMBER, ORDER, CUSTOMER)
PIPELINES = {topic: pipeline for pipeline in (PIPELINE, ORDERS)
             for topic in (pipeline.stream, pipeline.table, pipeline.output)}  # fmt: skip
EACH_DEFINITION = pytest.mark.parametrize(
    "definition", [*pipelines.PIPELINES.values(), ORDERS], ids=["board_detail", "order_detail", "orders"]
)
ZONES = ("Asia/Seoul", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "UTC")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LAST_MS = 9_214_646_399_999  # of the contract


def read_single(message, topic):
    """The reader raises nothing by making a reject of what it would raise: here that is a failure."""
    read = read_record(message, topic)
    assert not isinstance(read, Reject) or "cannot be read" not in read.reason, read
    return read


def raw(drawn):
    """The records as tasks read them."""
    return record_table(numbered(drawn))


RAW_LISTS = st.one_of(*[st.lists(records(topic), min_size=40, max_size=80) for topic in RAW_TOPICS])
DETAIL_LISTS = [st.lists(records(topic), min_size=40, max_size=80) for topic in (BOARD_DETAIL, ORDER_DETAIL)]
LISTS = st.one_of(RAW_LISTS, *DETAIL_LISTS)


@cache
def plain(topic):
    """A valid record."""
    return twisted(topic)[0]


def first_header(record, name):
    return next((value for each, value in record.headers if each == name), None)


def texts_of(record, topic):
    """The valid record's timestamps as they were sent."""
    # a number beside them may have more digits than Python converts
    sent = {} if record.value is None else json.loads(record.value.decode(), parse_int=str)
    return {text_column(field): sent.get(field.name) for field in topic.fields if field.type == "timestamp"}


def row_of(record, read, topic):
    """The record's row, from the reader of single records."""
    fields = {field.column: read.values.get(field.column) for field in topic.fields} | {topic.key_column: read.key}
    of_record = {"partition": 0, "offset": read.offset, "version_at": read.version_at, "deleted": read.deleted}
    return fields | of_record | texts_of(record, topic)


def headers_of(record):
    """Return the values that the join reads from the record's headers."""
    text, trace = h.accepted_at(first_header(record, h.ACCEPTED_AT)), first_header(record, h.TRACEPARENT)
    is_trace = trace is not None and re.fullmatch(h.RECORD_PATTERN.strip("^$").encode(), trace)
    return {
        "event_id": h.event_id(first_header(record, h.EVENT_ID)),
        "accepted_text": text,
        "accepted_at": None if text is None else parse_timestamp(text),
        "traceparent": trace.decode() if is_trace else None,
    }


def hold(drawn, topic, zone):
    """The readers by the column give the same rows and the same rejects as the reader of single records."""
    right, rejects = hold_the_rows(drawn, topic)
    definition = PIPELINES[topic]
    if topic is definition.stream:
        hold_the_join(drawn, right, rejects, definition, zone)
    return right


def hold_the_rows(drawn, topic):
    read = [read_single(message, topic) for message in numbered(drawn)]
    rejects = [one for one in read if isinstance(one, Reject)]
    right = [one for one in read if not isinstance(one, Reject)]
    found, rejected = RawColumns(topic, {field.column for field in topic.fields}, with_texts=True).read(raw(drawn))
    assert rejected == rejects
    found = {row["offset"]: row for row in found.drop_columns(["timestamp"]).to_pylist()}  # may be beyond datetime's
    assert found == {one.offset: row_of(drawn[one.offset], one, topic) for one in right}
    return right, rejects


def hold_the_join(drawn, right, rejects, definition, zone):
    """The same of the join's decoder, in the order of the records. One key of the table is known: 7."""
    stream, table = definition.stream, definition.table
    joiner = Joiner(definition, zone)
    decoded = joiner.decode(raw(drawn))
    assert decoded.rejects == rejects
    assert decoded.rows.to_pylist() == [
        row_of(drawn[one.offset], one, stream) | headers_of(drawn[one.offset])
        | {"timestamp": record_ms(Message(drawn[one.offset], one.offset)), "_index": one.offset}
        for one in right
    ]  # fmt: skip
    known = plain(table)
    (joined,) = joiner.join(decoded, newest([known], definition))
    join_column = stream.field(definition.join_field).column
    left = [one for one in right if not one.deleted and one.values[join_column] != 7]
    assert joiner.pending(decoded, joined.left) == [waiting(drawn[one.offset], one, definition, zone) for one in left]
    sent = [one for one in right if one not in left]
    hold_the_details(joined, sent, drawn, {7: read_single(Message(known, 0), table)}, definition, zone)


def newest(records_of_table, definition):
    """The newest version of each key, as the join looks it up."""
    return newest_of([VersionRows(definition).read(raw(records_of_table))], table_schema(definition))


def waiting(record, read, definition, zone):
    """The record as it is kept while it is pending."""
    of, stream = headers_of(record), definition.stream
    day = Day.of(read.values[stream.field(definition.day_field).column], zone).date
    return PendingRecord(
        stream.name, 0, read.offset, read.key, read.values[stream.field(definition.join_field).column], day, record.key,
        record.value, record_time(Message(record, read.offset)), of["event_id"], of["accepted_at"], read.version_at,
        of["traceparent"],
    )  # fmt: skip


def hold_the_details(joined, sent, drawn, of_table, definition, zone):
    """Joined records have the values of both sides, and the sink reads them back to the same row.

    `sent` are the stream's rows, `of_table` those of the table by key, from the reader of single records.
    """
    messages = [*iter_messages(DetailEncoder(definition).encode(joined.sent, joined.matches).records)]
    output, join_column = definition.output, definition.stream.field(definition.join_field).column
    details = [AnyRecord(output.name, *message, LAST_MS) for message in messages]
    batch = {row["kafka_offset"]: row for row in DetailDecoder(definition, zone).read(raw(details)).to_pylist()}
    assert len(batch) == len(messages) == len(sent)
    for number, (one, (key, value, headers)) in enumerate(zip(sent, messages, strict=True)):
        record = drawn[one.offset]
        match = None if one.deleted else of_table[one.values[join_column]]
        assert key == b"%d" % one.key
        assert headers == detail_headers(record, one, match, definition)
        row = read_single(Message(details[number], number), output)
        assert (row.key, row.deleted, row.version_at) == (one.key, one.deleted, one.version_at), record
        served = dict.fromkeys(definition.relational_columns)
        if one.deleted:
            assert value is None
            served |= {definition.key_column: one.key, "day": None, "table_partition": None, "table_offset": None}
        else:
            pairs = detail_pairs(record, one, match, definition)
            found = json.loads(value, object_pairs_hook=list)
            assert json.dumps(found) == json.dumps(pairs), record  # as text, because True equals 1
            served = row.values | {
                "day": Day.of(row.values[definition.day_column], zone).date,
                "table_partition": match.partition, "table_offset": match.offset,
            }  # fmt: skip
            for column in definition.columns:
                side, topic = (one, definition.stream) if column.side == "stream" else (match, definition.table)
                wanted = side.values[topic.field(column.source).column]
                assert row.values[definition.column_name(column)] == wanted, (column, record)
        served |= {
            definition.version_column: one.version_at, "stream_partition": 0, "stream_offset": one.offset,
            "kafka_partition": 0, "kafka_offset": number, "event_id": headers_of(record)["event_id"],
            "deleted": one.deleted, "reason": None, "record_key": None, "record_value": None,
            "kafka_timestamp": EPOCH + dt.timedelta(milliseconds=LAST_MS),
        }  # fmt: skip
        assert batch[number] == served, record


def detail_headers(record, one, match, definition):
    of = headers_of(record)
    version = f"{one.version_at:%Y-%m-%dT%H:%M:%S.%fZ}" if one.deleted else None
    found = {
        h.EVENT_ID: of["event_id"],
        h.ACCEPTED_AT: of["accepted_text"] or version,
        definition.stream.source_header: f"{definition.stream.name}/0/{one.offset}",
        definition.table.source_header: match and f"{definition.table.name}/0/{match.offset}",
        h.TRACEPARENT: of["traceparent"],
    }
    return [(name, text.encode()) for name, text in found.items() if text is not None]


def detail_pairs(record, one, match, definition):
    """The fields of the joined record in their order, as JSON has them."""
    sources, texts = {column.output: column for column in definition.columns}, texts_of(record, definition.stream)
    pairs = []
    for field in definition.output.fields:
        column = sources.get(field.name)
        if column is None:
            value = None
        elif column.side == "table":
            of = definition.table.field(column.source)
            value = as_json(match.values[of.column], of)
        else:
            of = definition.stream.field(column.source)
            value = texts[text_column(of)] if of.type == "timestamp" else as_json(one.values[of.column], of)
        pairs.append([field.name, value])
    return pairs


def as_json(value, field):
    """A value of the table, or of another type than a timestamp, in the form that the contract has for the output."""
    match field.type:
        case "timestamp" if value is not None:
            return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}"
        case "decimal" if value is not None:
            return f"{value:.{field.scale}f}"
        case "date" if value is not None:
            return str(value)
    return value


MICROSECONDS = "2024-02-29T23:59:59.123456+14:00"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@EACH_DEFINITION
def test_the_join_writes_records_that_keep_the_contract_with_the_same_values(definition):
    stream, table = definition.stream, definition.table
    right, *others = twisted(table, first_id=1, step=1)
    at = json.dumps({**json.loads(right.value), table.key_field: 0, **dict.fromkeys(times_of(table), MICROSECONDS)})
    tables = [right, *others, AnyRecord(table.name, b"0", at.encode())]
    known = right_rows(tables, table)
    streams = [twisted(stream, first_id=10_000 + key, author=key)[0] for key in known]
    streams += twisted(stream, first_id=20_000, step=1, author=int(right.key))
    assert hold_joined(definition, tables, streams) > len(known) / 2 + 50


def hold_joined(definition, tables, streams):
    """Join the records; returns how many are sent."""
    joiner = Joiner(definition, "Asia/Seoul")
    (joined,) = joiner.join(joiner.decode(raw(streams)), newest(tables, definition))
    known = right_rows(tables, definition.table)
    join_column = definition.stream.field(definition.join_field).column
    sent = [one for one in right_rows(streams, definition.stream).values() if one.values[join_column] in known]
    hold_the_details(joined, sent, streams, known, definition, "Asia/Seoul")
    return len(sent)


def right_rows(drawn, topic):
    """The rows of valid records, by key."""
    read = [read_single(message, topic) for message in numbered(drawn)]
    return {row.key: row for row in read if not isinstance(row, Reject)}


CHARACTERS = st.one_of(st.sampled_from('"\\/\t\n\r😀\u2028\ufeffn'), st.characters(exclude_categories=["Cs", "Cc"]))
INSTANTS = st.integers(0, LAST_MS * 1000 + 999).map(lambda us: EPOCH + dt.timedelta(microseconds=us))


def right_field(field):
    """Any value of the contract, as JSON has it."""
    match field.type:
        case "long":
            found = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0]))
        case "string":
            found = st.text(CHARACTERS, max_size=min(field.max_length, 8))
        case "boolean":
            found = st.booleans()
        case "decimal":
            most = 10**field.precision - 1
            digits = st.one_of(st.sampled_from([0, 1, -1, 10, most, -most]), st.integers(-most, most))
            found = digits.map(lambda n: f"{Decimal((n < 0, tuple(map(int, str(abs(n)))), -field.scale)):f}")
        case "date":
            found = st.dates(dt.date(1970, 1, 1), dt.date(2261, 12, 31)).map(str)
        case "timestamp":
            found = INSTANTS.map(lambda at: at.isoformat())
    return st.one_of(st.none(), found, found) if field.nullable else found


def right_values(topic, **roles):
    """Any valid values of the topic; `roles` are fields with a strategy of their own."""
    return st.fixed_dictionaries({field.name: right_field(field) for field in topic.fields} | roles)


@EACH_DEFINITION
@examples(30, 500)
@given(data=st.data())
def test_any_valid_values_are_in_the_joined_record(definition, data):
    stream, table = definition.stream, definition.table
    ids = data.draw(st.lists(right_field(table.field(table.key_field)), min_size=1, max_size=6, unique=True))
    of_table = [data.draw(right_values(table, **{table.key_field: st.just(number)})) for number in ids]
    of_stream = [
        data.draw(right_values(stream, **{stream.key_field: st.just(n), definition.join_field: st.sampled_from(ids)}))
        for n in range(6)
    ]
    tables, streams = (
        [AnyRecord(topic.name, b"%d" % value[topic.key_field],
                   json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode(), (), LAST_MS) for value in made]
        for topic, made in ((table, of_table), (stream, of_stream))
    )  # fmt: skip
    assert hold_joined(definition, tables, streams) == len(streams)


@EACH_DEFINITION
def test_texts_of_joined_records_are_escaped(definition):
    made = []
    for topic in (definition.table, definition.stream):
        texts = {field.name: '"\\\n\r\t/\\n\\"😀\u2028\ufeff'[: field.max_length]
                 for field in topic.fields if field.type == "string"}  # fmt: skip
        made.append([AnyRecord(topic.name, b"7", json.dumps(json.loads(plain(topic).value) | texts).encode())])
    assert hold_joined(definition, *made) == 1


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("at", ["2026-11-20T09:30:00.000Z", "2026-11-19T15:00:00Z", "2026-11-19T01:00:00Z"])
@pytest.mark.parametrize("topic", [BOARD, ORDER], ids=lambda topic: topic.name)
def test_a_pending_record_has_its_day_in_the_time_zone(topic, at, zone):
    hold(twisted(topic, at=at, author=8)[:1], topic, zone)


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00+14:00", MICROSECONDS, None])
@EACH_DEFINITION
def test_a_deletion_has_the_same_version_for_readers_of_the_output(definition, text):
    headers = [] if text is None else [(h.ACCEPTED_AT, text.encode()), (h.TRACEPARENT, TRACE.encode())]
    sent = AnyRecord(definition.stream.name, b"7", None, headers)
    joiner = Joiner(definition, "UTC")
    (joined,) = joiner.join(joiner.decode(raw([sent])), newest([], definition))
    hold_the_details(joined, [read_single(Message(sent, 0), definition.stream)], [sent], {}, definition, "UTC")


def times_of(topic):
    return [field.name for field in topic.fields if field.type == "timestamp"]


def numbered(drawn):
    return [Message(record, number) for number, record in enumerate(drawn)]


@pytest.mark.parametrize("topic", EVERY_TOPIC.values(), ids=lambda topic: topic.name)
def test_readers_by_the_column_agree_on_every_twist_of_a_value(topic):
    drawn = twisted(topic)
    for record in drawn:  # each in a lot of its own: one that is broken has its lot looked at one by one
        hold_the_rows([drawn[0], record], topic)
    right = hold([*drawn, drawn[0]], topic, "Asia/Seoul")
    hold([drawn[one.offset] for one in right[:-1]], topic, "Asia/Seoul")


@examples(50, 500)
@given(drawn=LISTS, zone=st.sampled_from(ZONES))
def test_readers_by_the_column_are_total_and_agree(drawn, zone):
    topic = EVERY_TOPIC[drawn[0].topic]
    right = {one.offset: one for one in hold(drawn, topic, zone)}
    table = raw(drawn)
    definition = PIPELINES[topic]
    if topic is definition.table:
        _, rejects = RawColumns(topic, table_schema(definition).names).read_messages(numbered(drawn))
        assert {reject.offset for reject in rejects} == set(range(len(drawn))) - set(right)
        versions = VersionRows(definition)
        assert versions.ordered(versions.read(table)).num_rows == len(right)
        assert of_no_day(table)["id"].to_pylist() == [record_id(record.key) for record in drawn]
        return
    dated = DatedRows(topic, definition, zone).add(table)
    for offset, day in enumerate(dated["day"].to_pylist()):
        created = right[offset].values.get(definition.day_field_of(topic).column) if offset in right else None
        assert day == (None if created is None else Day.of(created, zone).date)
    if topic is definition.stream:
        parts = CandidateReader(definition, Day.parse("2026-11-20", zone)).read(table)
        decided = decide(parts.versions, parts.broken, SOURCES.empty_table())
        assert decided.distinct >= 0
    else:
        assert places(dated, definition).num_rows <= len(drawn)


@pytest.mark.parametrize("topic", RAW_TOPICS, ids=lambda topic: topic.name)
def test_rows_keep_the_order_of_the_records_whichever_path_they_take(topic):
    value = plain(topic).value
    slow = [
        b" " + value, value + b"\n", with_field(value, b'"more": "' + b"x" * 65_536 + b'"'),
        with_field(value, b'"more": "' + b"[{" * 500 + b'"'), None,
    ]  # fmt: skip
    found = [AnyRecord(topic.name, b"7", each) for each in itertools.chain(*((value, each) for each in slow))]
    assert len(hold(found, topic, "UTC")) == len(found)
    columns = RawColumns(topic, {topic.version_column}, with_texts=True)
    columns.read(raw(found))
    assert columns.looked_at == len(slow)


@st.composite
def fragments(draw, topic):
    """Objects in pieces, a record each, that begin like objects: broken ones may fit together."""
    ids = range(1, 1 + draw(st.integers(2, 5)))
    value = {**json.loads(twisted(topic)[0].value), "more": {"a": [{"b": {}}]}}
    text = b"".join(encoded({**value, topic.key_field: number}) for number in ids)
    cuts = [at for at, each in enumerate(text) if each == ord("{") and at]
    chosen = sorted(draw(st.lists(st.sampled_from(cuts), min_size=len(ids) - 1, max_size=len(ids) - 1, unique=True)))
    bounds = itertools.pairwise([0, *chosen, len(text)])
    return [AnyRecord(topic.name, b"%d" % draw(st.sampled_from(ids)), text[first:end]) for first, end in bounds]


@examples(200, 2_000)
@given(drawn=st.sampled_from([BOARD, MEMBER, BOARD_DETAIL, ORDER]).flatmap(fragments))
def test_records_that_are_broken_do_not_become_right_beside_others(drawn):
    topic = EVERY_TOPIC[drawn[0].topic]
    read = [read_single(Message(record, number), topic) for number, record in enumerate(drawn)]
    found, _ = RawColumns(topic, {topic.version_column}).read(raw(drawn))
    keys = {one.offset: one.key for one in read if not isinstance(one, Reject)}
    assert dict(zip(found["offset"].to_pylist(), found[0].to_pylist(), strict=True)) == keys


@settings(max_examples=300, deadline=None)
@given(record=st.sampled_from(RAW_TOPICS).flatmap(records))
def test_the_version_alone_is_read_as_with_all_fields(record):
    read, version = (
        read_single(Message(record, 0), EVERY_TOPIC[record.topic]),
        version_of(EVERY_TOPIC[record.topic], Message(record, 0)),
    )
    if not isinstance(read, Reject):
        assert version == PublishedVersion(read.key, None if read.deleted else read.version_at)
    elif version is not None:  # another field is wrong
        assert read.reason.split(":")[0] not in (f"/{EVERY_TOPIC[record.topic].version_field}", "/timestamp")


@pytest.mark.parametrize("first", ["5", "null", '"gestern"', '{"a":[1]}', '"2026-11-19T09:30:00Z"'])
def test_of_several_versions_in_one_value_the_last_one_counts(first):
    record = AnyRecord("member", b"7", encoded(member(7)))
    value = b'{"modifiedAt":' + first.encode() + b"," + record.value[1:]
    read = read_single(Message(record._replace(value=value), 0), MEMBER)
    found = version_of(MEMBER, Message(record._replace(value=value), 0))
    assert found == PublishedVersion(7, read.version_at)


@pytest.mark.parametrize("value", ODD_VALUES)
def test_bytes_without_a_version_have_none(value):
    assert version_of(MEMBER, Message(AnyRecord("member", b"7", value), 0)) is None


def admitted(topic, body):
    """The record that the gateway makes of a body; None when it refuses it."""
    try:
        value = decode_body(body, GatewayLimits())
    except Fault:
        return None
    intake = Intake(None, None, None, None, FixedClock(SystemClock().now()), None, None)
    record = intake.admit(topic, value, "e-1", plain=not suspicious(body))
    return None if isinstance(record, Rejected) else record


def hold_what_is_admitted(topic, body):
    record = admitted(topic, body)
    if record is None:
        return
    sent = AnyRecord(topic.name, record.key, record.value, record.headers, record.accepted_at_ms)
    read = read_single(Message(sent, 0), topic)
    assert not isinstance(read, Reject), read.reason
    pairs, numbers = [], []
    json.loads(record.value, object_pairs_hook=pairs.extend, parse_int=numbers.append)
    assert all(len(name) <= MAX_NAME_LENGTH for name, _ in pairs)
    assert all(len(number.lstrip("-")) <= MAX_DIGITS for number in numbers)


@settings(max_examples=300, deadline=None)
@given(drawn=st.one_of(*[st.tuples(st.just(topic), values(topic)) for topic in RAW_TOPICS]))
def test_what_the_gateway_accepts_no_reader_rejects(drawn):
    topic, (_, body) = drawn
    hold_what_is_admitted(topic, body or b"")


@pytest.mark.parametrize("topic", RAW_TOPICS, ids=lambda topic: topic.name)
def test_what_the_gateway_accepts_of_every_twist_no_reader_rejects(topic):
    bodies = [record.value for record in twisted(topic)]
    assert sum(admitted(topic, body) is not None for body in bodies) > 50
    for body in bodies:
        hold_what_is_admitted(topic, body)


@pytest.fixture(scope="module")
def pipeline(postgres, tmp_path_factory):
    return migrated(None, postgres, "any_record_twin", tmp_path_factory.mktemp("any-record-twin"))


@examples(4, 12)
@given(drawn=st.lists(records(BOARD_DETAIL), min_size=1, max_size=60), zone=st.sampled_from(ZONES))
def test_the_sink_takes_any_record_of_its_topic(pipeline, drawn, zone):
    rows(pipeline, "TRUNCATE detail_live, offset_ledger, reject, day_publication CASCADE")
    batch = DetailDecoder(PIPELINE, zone).read(raw(drawn))
    assert batch.schema == records_schema(PIPELINE)
    assert batch.num_rows == len(drawn)
    store = opened_store(pipeline)
    try:
        written = store.apply(batch)
    finally:
        store.close()
    rejected = sum(isinstance(read_single(Message(r, n), BOARD_DETAIL), Reject) for n, r in enumerate(drawn))
    assert len(written.rejects) >= rejected
    kept = rows(pipeline, "SELECT reason, key, value, kafka_timestamp FROM reject")
    assert len(kept) == len(written.rejects)
    assert all(at is None or 1970 <= at.year <= 2261 for *_, at in kept)
    days = rows(pipeline, "SELECT day, created_at, modified_at FROM detail_live WHERE NOT deleted")
    assert all(day == Day.of(created, zone).date for day, created, _ in days)


@pytest.mark.parametrize("value", ODD_HEADER_VALUES)
def test_an_event_id_is_the_same_for_single_records_and_columns(value):
    table = raw([AnyRecord("board", b"1", None, [(h.EVENT_ID, value)])])
    assert event_ids(table["headers"].combine_chunks()).to_pylist() == [h.event_id(value)]


def test_an_id_is_the_same_for_single_records_and_columns():
    assert longs(pa.array(ODD_KEYS, pa.binary())).to_pylist() == [record_id(key) for key in ODD_KEYS]


def test_whatever_the_reader_of_single_records_raises_makes_a_reject():
    class Unreadable(Message):
        def headers(self):
            raise OverflowError("year 0 is out of range")

    read = read_record(Unreadable(AnyRecord(MEMBER.name, b"7", None), 3), MEMBER)
    assert (read.offset, read.key, read.value) == (3, b"7", None)
    assert read.reason == "/: cannot be read: OverflowError; send it again as the contract of member says"


def test_a_reject_has_no_timestamp_outside_the_years_of_the_contract():
    for timestamp_ms in (-1, LAST_MS + 1, 2**63 - 1, -(2**63)):
        _, (rejected,) = RawColumns(MEMBER, ()).read(raw([AnyRecord("member", b"7", b"{", (), timestamp_ms)]))
        assert rejected.kafka_timestamp is None
