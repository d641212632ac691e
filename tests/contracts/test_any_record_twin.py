"""All readers of records say the same of any record that a producer can put into a topic, and none of them raises.

Spark's SQL, the reader of single records, and those by the column: of changes, of the sink, of the rebuild and archive.
"""

from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from include.adapters.arrow_rows import event_ids
from include.adapters.published_versions import PublishedVersion, version_of
from include.adapters.served_batch import RECORDS
from include.adapters.speed_store import Reject
from include.contracts import headers as h
from include.contracts.day import Day
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.contracts.fields import record_id
from include.contracts.topics import BOARD, BOARD_DETAIL, MEMBER, TOPICS
from include.contracts.validation import hidden_violations, violations
from include.gateway.answer import Fault
from include.gateway.payload import decode as decode_body
from include.settings import GatewayLimits
from spark_jobs.batch.archive_rows import DatedRows, VersionRows, of_no_day, places
from spark_jobs.batch.boards import SOURCES, BoardReader, decide
from spark_jobs.batch.raw_columns import RawColumns, longs
from spark_jobs.batch.splits import RAW
from spark_jobs.schemas import RECORD
from spark_jobs.speed.detail_columns import DetailColumns
from spark_jobs.speed.table_columns import TableColumns
from spark_jobs.speed.table_records import read_record
from spark_jobs.transforms.decode import decode
from spark_jobs.transforms.details import day_of
from tests.support.any_record import ODD_HEADER_VALUES, ODD_KEYS, ODD_VALUES, AnyRecord, records, values
from tests.support.pipeline import migrated, rows
from tests.support.serving import opened_store

DAY = Day.parse("2026-11-20", "Asia/Seoul")
ZONES = ("Asia/Seoul", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "UTC")
LAST_MS = 2**63 // 1000 - 1  # of Spark, which counts microseconds


@dataclass(frozen=True)
class Message:
    """A record as the client library gives it."""

    record: AnyRecord
    number: int

    def partition(self):
        return 0

    def offset(self):
        return self.number

    def key(self):
        return self.record.key

    def value(self):
        return self.record.value

    def timestamp(self):
        return 1, self.record.timestamp_ms

    def headers(self):
        return list(self.record.headers) or None


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
    stamps = pa.array([r.timestamp_ms for r in drawn], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return table.set_column(table.schema.get_field_index("timestamp"), "timestamp", stamps).select(RAW.names)


RAW_LISTS = st.one_of(*[st.lists(records(topic), min_size=40, max_size=80) for topic in (BOARD, MEMBER)])
LISTS = st.one_of(RAW_LISTS, st.lists(records(BOARD_DETAIL), min_size=40, max_size=80))  # Spark does not read these
MANY = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


# No shrinking: an example is a Spark job, and a record that fails is told by itself.
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck),
          phases=(Phase.reuse, Phase.generate))  # fmt: skip
@given(drawn=RAW_LISTS, zone=st.sampled_from(ZONES))
def test_spark_and_the_reader_of_single_records_agree(spark, drawn, zone):
    kept, table = source(drawn)
    topic = TOPICS[kept[0].topic]
    decoded = decode(spark.createDataFrame(table), topic)
    if topic is BOARD:
        decoded = decoded.withColumn("day", day_of(decoded["created_at"], zone))
    key_column = topic.field(topic.key_field).column
    # times of a reject are whatever it says, and nobody takes them out of Spark
    times = [F.when(F.col("reason").isNull(), F.col(name)).alias(name)
             for name in ("version_at", "day") if name in decoded.columns]  # fmt: skip
    found = {row.offset: row for row in decoded.select("offset", "reason", "event_id", "deleted", "kafka_timestamp",
                                                       key_column, *times).collect()}  # fmt: skip
    ids = event_ids(table["headers"].combine_chunks()).to_pylist()
    for number, record in enumerate(kept):
        row, read = found[number], read_single(Message(record, number), topic)
        assert isinstance(read, Reject) == (row.reason is not None), f"{record}: {row.reason} and {read}"
        assert row.event_id == ids[number], record
        if isinstance(read, Reject):
            assert (read.reason.split(":")[0] == row.reason.split(":")[0]) or record.value is not None, record
            continue
        version_at = read.version_at.replace(tzinfo=None)
        key = row[key_column]
        assert (read.key, read.deleted, version_at) == (key, row.deleted, row.version_at)
        if topic is BOARD and not read.deleted:
            assert row.day == Day.of(read.values["created_at"], zone).date, record


@MANY
@given(drawn=LISTS, zone=st.sampled_from(ZONES))
def test_readers_by_the_column_are_total_and_agree(drawn, zone):
    topic = TOPICS[drawn[0].topic]
    read = [read_single(Message(record, number), topic) for number, record in enumerate(drawn)]
    keys = {one.offset: one.key for one in read if not isinstance(one, Reject)}
    table = raw(drawn)
    found, rejects = RawColumns(topic, "modifiedAt", {"modified_at"}).read(table)
    assert dict(zip(found["offset"].to_pylist(), found[0].to_pylist(), strict=True)) == keys
    assert {reject.offset for reject in rejects} == set(range(len(drawn))) - set(keys)
    if topic is MEMBER:
        columns = TableColumns(PIPELINE)
        columns.add([Message(record, number) for number, record in enumerate(drawn)])
        assert {reject.offset for reject in columns.rejects} == {reject.offset for reject in rejects}
        versions = VersionRows(PIPELINE)
        assert versions.ordered(versions.read(table)).num_rows == len(keys)
        assert of_no_day(table)["id"].to_pylist() == [record_id(record.key) for record in drawn]
        return
    dated = DatedRows(topic, PIPELINE, zone).add(table)
    for one, day in zip(read, dated["day"].to_pylist(), strict=True):
        created = None if isinstance(one, Reject) else one.values.get("created_at")
        assert day == (None if created is None else Day.of(created, zone).date)
    if topic is BOARD:
        parts = BoardReader(PIPELINE, Day.parse("2026-11-20", zone)).read(table)
        decided = decide(parts.versions, parts.broken, SOURCES.empty_table())
        assert decided.distinct >= 0
    else:
        assert places(dated).num_rows <= len(drawn)


@settings(max_examples=300, deadline=None)
@given(record=st.sampled_from([BOARD, MEMBER]).flatmap(records))
def test_the_version_alone_is_read_as_with_all_fields(record):
    read, version = read_single(Message(record, 0), TOPICS[record.topic]), version_of(record.key, record.value)
    if not isinstance(read, Reject):
        assert version == PublishedVersion(read.key, None if read.deleted else read.version_at)


@pytest.mark.parametrize("value", ODD_VALUES)
def test_bytes_without_a_version_have_none(value):
    assert version_of(b"7", value) is None


@settings(max_examples=300, deadline=None)
@given(drawn=st.one_of(*[st.tuples(st.just(topic), values(topic)) for topic in (BOARD, MEMBER)]))
def test_what_the_gateway_accepts_no_reader_rejects(drawn):
    topic, (_, body) = drawn
    try:
        value = decode_body(body or b"", GatewayLimits())
    except Fault:
        return
    if violations(topic, value) or hidden_violations(value, topic):
        return
    record = AnyRecord(topic.name, b"%d" % value["id"], msgspec.json.encode(value))
    assert not isinstance(read_single(Message(record, 0), topic), Reject)


@pytest.fixture(scope="module")
def pipeline(postgres, tmp_path_factory):
    return migrated(None, postgres, "any_record_twin", tmp_path_factory.mktemp("any-record-twin"))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(records(BOARD_DETAIL), min_size=1, max_size=60), zone=st.sampled_from(ZONES))
def test_the_sink_takes_any_record_of_its_topic(pipeline, drawn, zone):
    rows(pipeline, "TRUNCATE board_detail_live, offset_ledger, reject, day_publication CASCADE")
    _, table = source(drawn)
    batch = DetailColumns(PIPELINE, zone).read(table)
    assert batch.schema == RECORDS
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
    days = rows(pipeline, "SELECT day, created_at, modified_at FROM board_detail_live WHERE NOT deleted")
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
