"""All readers of records say the same of any record that a producer can put into a topic, and none of them raises.

Spark's SQL, the reader of single records, and those by the column: of changes, of the sink, of the rebuild and archive.
"""

import itertools
import json

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.fields import record_id
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER, TOPICS
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import MAX_DIGITS, MAX_NAME_LENGTH, Reject, suspicious
from include.gateway.calls.events import decode as decode_body
from include.gateway.http.message import Fault
from include.gateway.intake import Intake, Rejected
from include.gateway.unpublished_rows import PublishedVersion, version_of
from include.kafka.record_table import RAW, record_times
from include.runtime.settings import GatewayLimits
from spark_jobs.batch.day_rows import SOURCES, CandidateReader, decide
from spark_jobs.decoding.arrow import RawColumns, event_ids, longs, newest_versions, table_schema
from spark_jobs.decoding.dated_rows import DatedRows, VersionRows, of_no_day, places
from spark_jobs.decoding.reference import plain_value, read_record, slow_path_record
from spark_jobs.decoding.spark import RECORD, day_of, decode, to_record_columns, to_records, valid
from spark_jobs.joining import details_of_newest
from spark_jobs.speed.delivery import iter_records
from spark_jobs.speed.served_batch import DetailDecoder, records_schema
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
)
from tests.support.examples import examples
from tests.support.orders import CUSTOMER, ORDER, ORDER_DETAIL, ORDERS
from tests.support.pipeline import migrated, rows
from tests.support.serving import opened_store
from tests.support.spark import encoded

DAY = Day.parse("2026-11-20", "Asia/Seoul")
EVERY_TOPIC = {**TOPICS, **{topic.name: topic for topic in (ORDER, CUSTOMER, ORDER_DETAIL)}}
RAW_TOPICS = (BOARD, MEMBER, ORDER, CUSTOMER)
PIPELINES = {topic: pipeline for pipeline in (PIPELINE, ORDERS)
             for topic in (pipeline.stream, pipeline.table, pipeline.output)}  # fmt: skip
ZONES = ("Asia/Seoul", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "UTC")
LAST_MS = 2**63 // 1000 - 1  # of Spark, which counts microseconds


def read_single(message, topic):
    """The reader raises nothing by making a reject of what it would raise: here that is a failure."""
    read = read_record(message, topic)
    assert not isinstance(read, Reject) or "cannot be read" not in read.reason, read
    return read


def source(drawn):
    """The records as Spark's Kafka source has them; it knows no timestamps beyond its microseconds."""
    kept = [record._replace(timestamp_ms=max(-LAST_MS, min(LAST_MS, record.timestamp_ms))) for record in drawn]
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return kept, pa.Table.from_arrays([
        pa.array([r.key for r in kept], pa.binary()), pa.array([r.value for r in kept], pa.binary()),
        pa.array([r.topic for r in kept], pa.string()), pa.array([0] * len(kept), pa.int32()),
        pa.array(range(len(kept)), pa.int64()),
        pa.array([r.timestamp_ms * 1000 for r in kept], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([[{"key": k, "value": v} for k, v in r.headers] or None for r in kept], headers),
    ], names=RECORD.names)  # fmt: skip


def raw(drawn):
    """The records as the batch layer reads them."""
    _, table = source(drawn)
    stamps = record_times(numbered(drawn)).cast(pa.timestamp("ms", "UTC"))
    return table.set_column(table.schema.get_field_index("timestamp"), "timestamp", stamps).select(RAW.names)


RAW_LISTS = st.one_of(*[st.lists(records(topic), min_size=40, max_size=80) for topic in RAW_TOPICS])
DETAIL_LISTS = [st.lists(records(topic), min_size=40, max_size=80) for topic in (BOARD_DETAIL, ORDER_DETAIL)]
LISTS = st.one_of(RAW_LISTS, *DETAIL_LISTS)  # Spark does not read the latter


def streamed(spark, table, topic, zone):
    """Return the result of the stream's transforms for each record, by offset, with every column."""
    decoded = decode(spark.createDataFrame(table), topic, traced=True)
    definition = PIPELINES[topic]
    if topic is definition.stream:
        decoded = joined(spark, decoded, definition)
        assert to_records(decoded, definition).toArrow().num_rows == table.num_rows
        decoded = decoded.withColumn("day", day_of(decoded[topic.field(definition.day_field).column], zone))
    return {row["offset"]: row for row in decoded.toArrow().to_pylist()}


def joined(spark, decoded, definition):
    """The stream's records with those of the table, of which one key is known: 7."""
    table = definition.table
    _, known = source(twisted(table)[:1])
    return details_of_newest(decoded, newest_of(spark, known, table), definition)


def newest_of(spark, records, table):
    """The newest version of each key among the table's records, as the stream looks them up."""
    rows = valid(decode(spark.createDataFrame(records), table)).toArrow()
    return spark.createDataFrame(newest_versions(rows, table.key_column))


def values_of(row, topic):
    """The topic's columns but for its key, which has a place of its own in `TableRow`."""
    return {f.column: row[f.column] for f in topic.fields if f.name != topic.key_field}


def hold_against_the_reader_of_single_records(spark, drawn, topic, zone):
    """Right at first sight is right, with the same values; all else is null, and that reader's to judge."""
    key_column = topic.key_column
    kept, table = source(drawn)
    found = streamed(spark, table, topic, zone)
    ids = event_ids(table["headers"].combine_chunks()).to_pylist()
    plain = []
    for number, record in enumerate(kept):
        row, read = found[number], read_single(Message(record, number), topic)
        assert row["event_id"] == ids[number], record
        if row["ok"]:
            assert not isinstance(read, Reject), f"{record}: {read.reason}"
            assert (read.key, read.deleted, read.version_at) == (row[key_column], row["deleted"], row["version_at"])
            if not read.deleted:
                assert values_of(row, topic) == values_of({key_column: None, **read.values}, topic), record
            if "day" in row and not read.deleted:
                day_column = topic.field(PIPELINES[topic].day_field).column
                assert row["day"] == Day.of(read.values[day_column], zone).date, record
            continue
        assert {row[key_column], row.get("day"), *values_of(row, topic).values()} == {None}, record
        again = read_record(slow_path_record(row), topic)
        assert isinstance(again, Reject) == isinstance(read, Reject), record
        if isinstance(read, Reject):
            assert (again.reason, again.kafka_timestamp) == (read.reason, read.kafka_timestamp)
        else:
            assert not read.deleted, f"a tombstone is right at first sight or not at all: {record}"
            plain.append(record._replace(value=plain_value(record.value, topic)))
    if plain:
        hold_plain_values_to_be_right_at_first_sight(spark, plain, topic, zone)


def hold_plain_values_to_be_right_at_first_sight(spark, plain, topic, zone):
    found = streamed(spark, source(plain)[1], topic, zone)
    for number, record in enumerate(plain):
        read = read_single(Message(record, number), topic)
        assert found[number]["ok"], record
        assert values_of(found[number], topic) == values_of({topic.key_column: None, **read.values}, topic)


# No shrinking: an example is a Spark job, and a record that fails is told by itself.
@examples(2, 6, phases=(Phase.reuse, Phase.generate))
@given(drawn=RAW_LISTS, zone=st.sampled_from(ZONES))
def test_spark_and_the_reader_of_single_records_agree(spark, drawn, zone):
    hold_against_the_reader_of_single_records(spark, drawn, EVERY_TOPIC[drawn[0].topic], zone)


@pytest.mark.parametrize("topic", RAW_TOPICS, ids=lambda topic: topic.name)
def test_spark_and_the_reader_of_single_records_agree_on_every_twist_of_a_value(spark, topic):
    hold_against_the_reader_of_single_records(spark, twisted(topic), topic, "Asia/Seoul")


@pytest.mark.parametrize("definition", [PIPELINE, ORDERS], ids=lambda definition: definition.name)
def test_the_join_writes_records_that_keep_the_contract_with_the_same_values(spark, definition):
    stream, table, output = definition.stream, definition.table, definition.output
    right, *others = twisted(table, first_id=1, step=1)
    at = json.dumps({**json.loads(right.value), table.key_field: 0, **dict.fromkeys(times_of(table), MICROSECONDS)})
    tables = [right, *others, AnyRecord(table.name, b"0", at.encode())]
    read = {row.key: row for row in map(read_single, numbered(tables), itertools.repeat(table))
            if not isinstance(row, Reject)}  # fmt: skip
    streams = [twisted(stream, first_id=10_000 + key, author=key)[0] for key in read]
    streams += twisted(stream, first_id=20_000, step=1, author=int(right.key))
    sent = {row.key: row for row in map(read_single, numbered(streams), itertools.repeat(stream))
            if not isinstance(row, Reject)}  # fmt: skip
    decoded = valid(decode(spark.createDataFrame(source(streams)[1]), stream, traced=True))
    details = details_of_newest(decoded, newest_of(spark, source(tables)[1], table), definition)
    written = records_of(details.where("is_matched"), definition)
    assert len(written) > len(read) / 2 + 50
    for number, record in enumerate(written):
        message = Message(AnyRecord(output.name, record["key"], record["value"]), number)
        row = read_single(message, output)
        assert not isinstance(row, Reject), (record, row.reason)
        of_stream = sent[row.key].values
        of_table = read[of_stream[stream.field(definition.join_field).column]].values
        for column in definition.columns:
            side, topic = (of_stream, stream) if column.side == "stream" else (of_table, table)
            wanted = side[topic.field(column.source).column]
            assert row.values[output.field(column.output).column] == wanted, (column, record)


MICROSECONDS = "2024-02-29T23:59:59.123456+14:00"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00+14:00", MICROSECONDS, None])
def test_a_deletion_has_the_same_version_for_readers_of_the_output(spark, text):
    headers = [] if text is None else [(h.ACCEPTED_AT, text.encode()), (h.TRACEPARENT, TRACE.encode())]
    sent = AnyRecord(BOARD.name, b"7", None, headers)
    decoded = decode(spark.createDataFrame(source([sent])[1]), BOARD, traced=True)
    (written,) = records_of(joined(spark, decoded, PIPELINE), PIPELINE)
    pairs = [(each["key"], each["value"]) for each in written["headers"]]
    record = AnyRecord(BOARD_DETAIL.name, written["key"], written["value"], pairs, sent.timestamp_ms + 3_600_000)
    assert read_single(Message(record, 0), BOARD_DETAIL).version_at == read_single(Message(sent, 0), BOARD).version_at


def records_of(details, definition):
    """Return the records that Spark's sink sends; those of a transaction are the same."""
    written = to_records(details, definition).toArrow().to_pylist()
    sent = iter_records(to_record_columns(details, definition).toArrow())
    pairs = [(each["key"], each["value"], [(h["key"], h["value"]) for h in each["headers"]]) for each in written]
    assert [*sent] == pairs
    return written


def times_of(topic):
    return [field.name for field in topic.fields if field.type == "timestamp"]


def numbered(drawn):
    return [Message(record, number) for number, record in enumerate(drawn)]


@pytest.mark.parametrize("topic", EVERY_TOPIC.values(), ids=lambda topic: topic.name)
def test_readers_by_the_column_agree_on_every_twist_of_a_value(topic):
    right, *drawn = twisted(topic)
    columns = RawColumns(topic, {field.column for field in topic.fields})
    for record in drawn:  # each in a lot of its own: one that is broken has its lot looked at one by one
        read = read_single(Message(record, 1), topic)
        found, rejects = columns.read(raw([right, record]))
        assert (found.num_rows, len(rejects)) == ((1, 1) if isinstance(read, Reject) else (2, 0)), record.value[-200:]
        if not isinstance(read, Reject):
            (row,) = [row for row in found.to_pylist() if row["offset"] == 1]
            assert values_of(row, topic) == values_of({topic.key_column: 7, **read.values}, topic)


@examples(10, 30)
@given(drawn=LISTS, zone=st.sampled_from(ZONES))
def test_readers_by_the_column_are_total_and_agree(drawn, zone):
    topic = EVERY_TOPIC[drawn[0].topic]
    read = [read_single(Message(record, number), topic) for number, record in enumerate(drawn)]
    keys = {one.offset: one.key for one in read if not isinstance(one, Reject)}
    table = raw(drawn)
    found, rejects = RawColumns(topic, {topic.version_column}).read(table)
    assert dict(zip(found["offset"].to_pylist(), found[0].to_pylist(), strict=True)) == keys
    assert {reject.offset for reject in rejects} == set(range(len(drawn))) - set(keys)
    definition = PIPELINES[topic]
    if topic is definition.table:
        columns = RawColumns(topic, table_schema(definition).names)
        _, found = columns.read_messages([Message(record, number) for number, record in enumerate(drawn)])
        assert {reject.offset for reject in found} == {reject.offset for reject in rejects}
        versions = VersionRows(definition)
        assert versions.ordered(versions.read(table)).num_rows == len(keys)
        assert of_no_day(table)["id"].to_pylist() == [record_id(record.key) for record in drawn]
        return
    dated = DatedRows(topic, definition, zone).add(table)
    for one, day in zip(read, dated["day"].to_pylist(), strict=True):
        created = None if isinstance(one, Reject) else one.values.get(definition.day_field_of(topic).column)
        assert day == (None if created is None else Day.of(created, zone).date)
    if topic is definition.stream:
        parts = CandidateReader(definition, Day.parse("2026-11-20", zone)).read(table)
        decided = decide(parts.versions, parts.broken, SOURCES.empty_table())
        assert decided.distinct >= 0
    else:
        assert places(dated, definition).num_rows <= len(drawn)


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
    _, table = source(drawn)
    batch = DetailDecoder(PIPELINE, zone).read(table)
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
    _, table = source([AnyRecord("board", b"1", None, [(h.EVENT_ID, value)])])
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


def test_a_reject_of_the_slow_path_has_no_timestamp_outside_the_years_of_the_contract():
    row = {"key": b"7", "value": b"{", "partition": 0, "offset": 3, "kafka_timestamp": None, "accepted_text": None}
    assert read_record(slow_path_record(row), MEMBER).kafka_timestamp is None
