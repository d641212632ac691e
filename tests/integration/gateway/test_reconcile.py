"""Rows that were saved but never published are found and produced: exactly those, and once."""

import asyncio
import datetime as dt
import json
import logging
import re
import subprocess
import uuid
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from include.contracts.clock import SystemClock, epoch_ms, rfc3339
from include.contracts.errors import ContractMismatch, DatabaseUnavailable
from include.contracts.pipelines import BOARD, MEMBER
from include.contracts.validation import Reject
from include.database.sessions import connect
from include.gateway.broker_clock import BrokerClock
from include.gateway.fallback.store import SqliteFallbackStore
from include.gateway.intake import row_event_id, row_record
from include.gateway.ports import ChangeKey, Record
from include.gateway.reconcile import IdsGivenTwice, Scope, TimelineTooYoung, reconcile_sources
from include.gateway.system_of_record import PostgresSystemOfRecord
from include.integrity.days.gateways import StoresUnread
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import Settings
from spark_jobs.decoding.reference import read_record
from tests.servers import wait_until
from tests.support.broker import producers_times
from tests.support.database import database_environment, migrated
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP
from tests.support.messages import OTHER_PIPELINE
from tests.support.sending import sending

DATABASE = "gateway_reconcile"
FIRST_ID = 7_000_000_000  # ids that no other test's records have: the topics are shared
MEMBER_FIELDS = {"nickname": "하늘", "city": None, "phone": None, "email": None}
BOARD_FIELDS = {"memberId": 7, "title": "제목", "body": "본문"}
HEADERS = {"Authorization": "Bearer data-token"}
NONE = [(0, 0, 0), (0, 0, 0)]


@pytest.fixture
def broker(gateway_broker):
    yield gateway_broker
    gateway_broker.mend()


@pytest.fixture
def database(postgres):
    settings = migrated(postgres, DATABASE)
    with connect(settings, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT setval('site.member_id_seq', %(next)s), setval('site.board_id_seq', %(next)s)",
            {"next": FIRST_ID + uuid.uuid4().int % 10**9 * 1000},
        )
    return settings


@pytest.fixture
def environment(broker, database, postgres):
    return {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers, **database_environment(postgres, DATABASE)}


@pytest.fixture
def reconcile(environment):
    """Reconciles all rows, however young, and tells what was found, produced and refused a topic."""

    def run(**scope):
        settings = Settings.from_environment(environment)
        scope = {"since": None, "min_age_s": 0, **scope}
        return [(one.unpublished, one.produced, one.refused) for one in reconcile_sources(settings, Scope(**scope))]

    return run


def changed(database, scenario):
    """Run a scenario of changes to the tables, and return its result."""

    async def main():
        rows = PostgresSystemOfRecord(database, BrokerClock(SystemClock()), 5)
        try:
            return await scenario(rows)
        finally:
            await rows.close()

    return asyncio.run(main())


def of_row(broker, topic, row_id):
    return [message for message in broker.messages(topic) if message.key() == str(row_id).encode()]


def event_id(message):
    return dict(message.headers())["event-id"].decode()


def test_missing_versions_are_produced_and_a_second_run_finds_none(broker, database, reconcile):
    async def scenario(rows):
        made = [await rows.create(MEMBER, MEMBER_FIELDS) for _ in range(3)]
        newest = await rows.update(MEMBER, made[1].id, MEMBER_FIELDS | {"nickname": "바다"})
        gone = await rows.delete(MEMBER, made[2].id)
        return made[0], newest, gone, await rows.create(BOARD, BOARD_FIELDS)

    member, newest, gone, board = changed(database, scenario)
    assert reconcile(dry_run=True) == [(3, 0, 0), (1, 0, 0)]
    assert of_row(broker, "member", member.id) == []
    assert reconcile() == [(3, 3, 0), (1, 1, 0)]
    assert reconcile() == NONE
    for topic, saved in (("member", member), ("member", newest), ("board", board)):
        [message] = of_row(broker, topic, saved.id)
        assert json.loads(message.value()) == saved.value
        assert uuid.UUID(event_id(message)).version == 5
    [tombstone] = of_row(broker, "member", gone.id)
    assert tombstone.value() is None
    assert dict(tombstone.headers())["accepted-at"].decode() == rfc3339(gone.modified_at)


def test_the_database_of_another_pipeline_is_refused(database, environment):
    settings = Settings.from_environment(environment | {"PIPELINE": "order_detail"})
    with pytest.raises(ContractMismatch, match=OTHER_PIPELINE):
        reconcile_sources(settings, Scope(None, dry_run=True))


def test_rows_that_were_saved_while_the_databases_clock_was_ahead_are_told_and_dated_back(
    broker, database, environment, caplog
):
    async def scenario(rows):
        gone = await rows.create(MEMBER, MEMBER_FIELDS)
        await rows.delete(MEMBER, gone.id)
        return gone, await rows.create(MEMBER, MEMBER_FIELDS), await rows.create(BOARD, BOARD_FIELDS)

    gone, *saved = changed(database, scenario)
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE site.member SET created_at = created_at + interval '1 day',"
                       " modified_at = modified_at + interval '1 day'")  # fmt: skip
        cursor.execute("UPDATE site.board_document SET modified_at = modified_at + interval '1 day'")
    settings = Settings.from_environment(environment)
    scope = Scope(None, 0)
    for one in (replace(scope, dry_run=True), scope):
        done = reconcile_sources(settings, one)
        assert [(one.unpublished, one.ahead) for one in done] == [(0, 2), (0, 1)]
    told = f"member: 2 ids with a version that is ahead of PostgreSQL's clock: see docs/runbooks/clock.md: {gone.id}, "
    assert told in caplog.text
    done = reconcile_sources(settings, replace(scope, dates_back=True))
    assert [(one.produced, one.ahead) for one in done] == [(0, 0), (0, 0)]
    assert [(one.produced, one.ahead) for one in reconcile_sources(settings, scope)] == [(2, 0), (1, 0)]
    for topic, row in zip((MEMBER, BOARD), saved, strict=True):
        [message] = of_row(broker, topic.name, row.id)
        assert not isinstance(read_record(message, topic), Reject)
    changed(database, lambda rows: rows.update(MEMBER, saved[0].id, MEMBER_FIELDS))


@pytest.mark.parametrize("topic", [MEMBER, BOARD], ids=["member", "board"])
def test_row_whose_record_readers_reject_for_its_version_is_produced_again(broker, database, reconcile, topic):
    """The broker's clock was a day behind when it appended the records."""
    fields = MEMBER_FIELDS if topic is MEMBER else BOARD_FIELDS

    async def scenario(rows):
        made, gone = await rows.create(topic, fields), await rows.create(topic, fields)
        return made, await rows.delete(topic, gone.id)

    behind = epoch_ms(SystemClock().now() - dt.timedelta(days=1))
    saved = changed(database, scenario)
    with producers_times(broker.bootstrap_servers, topic.name), sending(broker.bootstrap_servers) as sender:
        for each in saved:
            record = row_record(topic, each)
            sender.send(record.topic, record.value, record.key, headers=record.headers, timestamp=behind)
    found = [(2, 2, 0), (0, 0, 0)]
    assert reconcile() == (found if topic is MEMBER else found[::-1])
    assert reconcile() == NONE
    for each in saved:
        first, second = sorted(of_row(broker, topic.name, each.id), key=lambda message: message.offset())
        assert event_id(first) == event_id(second)
        assert isinstance(read_record(first, topic), Reject)
        assert read_record(second, topic).version_at == each.modified_at


def test_row_changed_after_it_was_published_is_produced_again_in_its_newest_version(broker, database, reconcile):
    made = changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS))
    reconcile()
    newest = changed(database, lambda rows: rows.update(BOARD, made.id, BOARD_FIELDS | {"title": "새"}))
    assert reconcile() == [(0, 0, 0), (1, 1, 0)]
    gone = changed(database, lambda rows: rows.delete(BOARD, made.id))
    assert reconcile() == [(0, 0, 0), (1, 1, 0)]
    assert reconcile() == NONE
    first, second, third = sorted(of_row(broker, "board", made.id), key=lambda message: message.offset())
    assert [json.loads(message.value()) for message in (first, second)] == [made.value, newest.value]
    assert (third.value(), gone.value) == (None, None)
    assert len({event_id(message) for message in (first, second, third)}) == 3


def test_row_that_waits_in_a_fallback_store_is_left_to_it(broker, database, reconcile, tmp_path):
    async def scenario(rows):
        made = await rows.create(BOARD, BOARD_FIELDS)
        store = SqliteFallbackStore(tmp_path, SystemClock())
        store.open()
        try:
            at_ms = epoch_ms(made.modified_at)
            record = Record("board", b"%d" % made.id, json.dumps(made.value).encode(), [("event-id", b"e")], at_ms)
            await store.put(record, "test", may_be_in_kafka=False)
            while_held = await asyncio.to_thread(reconcile, stores=[tmp_path])
        finally:
            await store.close()
        return made, while_held

    made, while_held = changed(database, scenario)
    assert while_held == NONE
    assert reconcile(stores=[tmp_path]) == NONE
    changed(database, lambda rows: rows.update(BOARD, made.id, BOARD_FIELDS))
    assert reconcile(stores=[tmp_path]) == [(0, 0, 0), (1, 1, 0)]


def test_young_rows_and_rows_before_since_are_left_alone(broker, database, reconcile):
    made = changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS))
    later = made.modified_at + dt.timedelta(milliseconds=1)
    assert reconcile(min_age_s=60) == NONE
    assert reconcile(since=later) == NONE
    assert reconcile(since=made.modified_at) == [(0, 0, 0), (1, 1, 0)]


def test_record_has_the_identity_that_a_retry_of_the_call_gives_it(broker, database, reconcile):
    key = ChangeKey("site", "key-of-the-call", b"f" * 32)
    made = changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS, key))
    reconcile()
    [message] = of_row(broker, "board", made.id)
    assert dict(message.headers())["idempotency-key"] == b"key-of-the-call"
    assert event_id(message) == row_event_id("board", made.id, made.modified_at)


def test_records_that_are_not_the_tables_are_passed_over(broker, database, reconcile, environment):
    made = changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS))
    key = str(made.id).encode()
    with sending(broker.bootstrap_servers) as sender:
        for strange_key, value in (
            (None, b"{}"),
            (b"no id", b"{}"),
            (b"9" * 40, b"{}"),
            (key, b"no JSON"),
            (key, b"{}"),
            (key, b'{"modifiedAt": "2999-01-01T00:00:00"}'),
            (key, b'{"modifiedAt": 7}'),
            (key, b'{"modifiedAt": "2001-01-01T00:00:00Z"}'),
        ):
            sender.send("board", value, strange_key, headers=[("event-id", b"strange")])
    assert reconcile() == [(0, 0, 0), (1, 1, 0)]


def test_more_rows_than_a_batch(broker, database, reconcile):
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO site.member (nickname, created_at, modified_at)"
            " SELECT 'm' || n, now(), date_trunc('milliseconds', now()) FROM generate_series(1, 700) AS n"
        )
    assert reconcile() == [(700, 700, 0), (0, 0, 0)]
    assert reconcile() == NONE


def test_row_answered_503_with_broker_down_and_store_full_is_found_by_the_command(
    broker, database, environment, tmp_path
):
    gateway = GatewayProcess.over(
        tmp_path,
        broker.bootstrap_servers,
        GATEWAY_FALLBACK_MAX_BYTES="1",
        **LONG_DEADLINE,
        **environment,
    ).start_sending()

    def post():
        return HTTP.post(f"{gateway.url}/boards", json=BOARD_FIELDS, headers=HEADERS, timeout=30)

    def command(*arguments):
        process = gateway.run("pipeline", "gateway", "reconcile", "--min-age-s", "0", *arguments)
        return process.wait(timeout=120)

    try:
        published = post()
        assert published.status_code == 201
        broker.kill()
        refused = post()
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert command() == 75  # the broker is out
        broker.start()
        with connect(database, "gateway") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, document FROM site.board_document ORDER BY id")
            rows = cursor.fetchall()
        [lost] = [row for row in rows if row[0] != published.json()["id"]]
        assert command("--dry-run") == 0
        assert of_row(broker, "board", lost[0]) == []
        assert command() == 0
        [message] = of_row(broker, "board", lost[0])
        assert json.loads(message.value()) == lost[1]
        assert command() == 0
        assert len(of_row(broker, "board", lost[0])) == 1
        assert len(of_row(broker, "board", published.json()["id"])) == 1
        log = gateway.log.read_text()
        assert "board: 1 not published, 1 produced, 0 refused, 0 ahead, 0 written back" in log
        assert "본문" not in log
    finally:
        gateway.kill()


def test_retry_with_the_same_key_after_503_produces_the_row_that_was_saved(broker, database, environment, tmp_path):
    gateway = GatewayProcess.over(
        tmp_path,
        broker.bootstrap_servers,
        GATEWAY_FALLBACK_MAX_BYTES="1",
        **LONG_DEADLINE,
        **environment,
    ).start_sending()
    key = str(uuid.uuid4())

    def post():
        return HTTP.post(
            f"{gateway.url}/boards",
            json=BOARD_FIELDS,
            headers=HEADERS | {"Idempotency-Key": key},
            timeout=30,
        )

    try:
        broker.kill()
        assert post().status_code == 503
        gateway.kill()  # what it remembers is gone; the row and its key are not
        broker.start()
        gateway.start()
        wait_until(lambda: post().status_code == 201, 30, "the retry is answered 201")
        answers = {post().text for _ in range(3)}
        with connect(database, "gateway") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM site.board_document")
            [[row_id]] = cursor.fetchall()
        [message] = of_row(broker, "board", row_id)
    finally:
        gateway.kill()
    assert dict(message.headers())["idempotency-key"].decode() == key
    assert {json.loads(answer)["eventId"] for answer in answers} == {event_id(message)}
    assert [json.loads(answer)["id"] for answer in answers] == [row_id]


@pytest.fixture
def failed_over(database):
    """As after a failover: the first session on the new timeline finds rows missing."""

    def fail_over(*statements, replayed_until=None):
        with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
            for statement, parameters in statements:
                cursor.execute(statement, parameters)
            cursor.execute("DELETE FROM database_timeline")
            cursor.execute("INSERT INTO database_timeline (timeline, reconciled_at) VALUES ('former/1', now())")
        with connect(database, "gateway"):
            pass
        with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE database_timeline SET replayed_until = %s WHERE timeline <> 'former/1'",
                           (replayed_until,))  # fmt: skip

    return fail_over


def tables(database):
    with connect(database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, nickname, city, phone, email, created_at, modified_at, deleted_at IS NULL"
                       " FROM site.member ORDER BY id")  # fmt: skip
        members = cursor.fetchall()
        cursor.execute("SELECT id, document, modified_at, deleted_at IS NULL FROM site.board_document ORDER BY id")
        return members, cursor.fetchall()


def written_back(environment, **scope):
    done = reconcile_sources(Settings.from_environment(environment), Scope(**{"since": None, "min_age_s": 0, **scope}))
    return [(one.written_back, one.without_record, one.with_tombstone) for one in done]


def produce_value(broker, topic, row_id, value):
    """Produce a record that the API did not make of a row."""
    headers = [("event-id", b"another's"), ("accepted-at", rfc3339(SystemClock().now()).encode())]
    with sending(broker.bootstrap_servers) as sender:
        sender.send(topic, value and json.dumps(value).encode(), str(row_id).encode(), headers=headers)


@pytest.fixture
def emptied(broker):
    """The topics without the records of other tests, whose rows would be written back too."""
    offsets, admin = (
        OffsetReader(KafkaConnection(broker.bootstrap_servers)),
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}),
    )
    ends = [TopicPartition(name, p, end) for name in ("member", "board") for p, end in offsets.ends(name).items()]
    for future in admin.delete_records(ends).values():
        future.result(30)


def test_rows_and_versions_that_a_failover_lost_are_written_back_from_their_records(
    broker, database, environment, reconcile, failed_over, emptied, caplog
):
    async def scenario(rows):
        made = [await rows.create(MEMBER, MEMBER_FIELDS) for _ in range(6)]
        await rows.update(MEMBER, made[1].id, MEMBER_FIELDS | {"nickname": "바다", "city": "부산"})
        await rows.delete(MEMBER, made[2].id)
        await rows.create(BOARD, BOARD_FIELDS)
        board = await rows.create(BOARD, BOARD_FIELDS)
        await rows.update(BOARD, board.id, BOARD_FIELDS | {"title": '"새", 제목\n'})
        return [each.id for each in made]

    first, edited, deleted, unknown, last, forgotten = changed(database, scenario)
    produce_value(broker, "member", last + 10**6, {"modifiedAt": "2026-11-20T03:00:00.000Z"})  # an event, not a row
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM site.member WHERE id = %s", (unknown,))  # it has no record
    assert reconcile() == [(5, 5, 0), (2, 2, 0)]
    before = tables(database)
    produce_value(broker, "member", forgotten, None)
    failed_over(
        ("UPDATE site.member SET nickname = 'old', modified_at = created_at WHERE id = %s", (edited,)),
        ("UPDATE site.member SET deleted_at = NULL, modified_at = created_at WHERE id = %s", (deleted,)),
        ("DELETE FROM site.member WHERE id = ANY (%s)", ([first, last],)),
        ("DELETE FROM site.board_document", None),
    )

    assert written_back(environment, dry_run=True) == [(4, 1, 1), (2, 0, 0)]
    assert tables(database) != before
    with caplog.at_level(logging.INFO):
        assert written_back(environment) == [(4, 1, 1), (2, 0, 0)]
    assert tables(database) == before
    assert f"member: 1 ids given out and without a row or a record, so not answered 2xx: {unknown}\n" in caplog.text
    assert re.search(rf"member: 1 ids saved, with a tombstone .*: {forgotten}\n", caplog.text)
    assert reconcile() == NONE
    assert written_back(environment) == [(0, 0, 0), (0, 0, 0)]


def test_a_row_that_was_deleted_or_forgotten_does_not_come_back(broker, database, environment, failed_over, emptied):
    async def scenario(rows):
        made, forgotten = [await rows.create(MEMBER, MEMBER_FIELDS) for _ in range(2)]
        return made.id, forgotten.id

    deleted, forgotten = changed(database, scenario)
    written_back(environment)
    changed(database, lambda rows: rows.delete(MEMBER, deleted))
    written_back(environment)
    produce_value(broker, "member", forgotten, None)
    failed_over(("DELETE FROM site.member", None))
    assert written_back(environment) == [(0, 0, 0), (0, 0, 0)]
    assert tables(database) == ([], [])


def test_a_person_in_the_list_of_the_forgotten_does_not_come_back_without_a_tombstone_either(
    database, environment, reconcile, failed_over, emptied
):
    async def scenario(rows):
        forgotten, other = [await rows.create(MEMBER, MEMBER_FIELDS) for _ in range(2)]
        await rows.create(BOARD, BOARD_FIELDS | {"memberId": forgotten.id})
        found = await rows.create(BOARD, BOARD_FIELDS | {"memberId": other.id})
        board = await rows.create(BOARD, BOARD_FIELDS | {"memberId": other.id})
        return forgotten.id, other.id, found.id, board.id

    forgotten, other, found, board = changed(database, scenario)
    reconcile()
    failed_over(
        ("INSERT INTO forgotten_key (member_id, reason, made_by, stream_keys) VALUES (%s, 'asked', 'a test', %s)",
         (forgotten, [found])),
        ("DELETE FROM site.member", None),
        ("DELETE FROM site.board_document", None),
    )  # fmt: skip
    assert written_back(environment) == [(1, 0, 0), (1, 0, 0)]
    members, boards = tables(database)
    assert [row[0] for row in members] == [other]
    assert [row[0] for row in boards] == [board]


def test_an_id_that_was_given_to_two_rows_is_an_error_until_a_person_accepts_it(
    database, environment, reconcile, failed_over, emptied, caplog
):
    async def scenario(rows):
        made = [await rows.create(MEMBER, MEMBER_FIELDS) for _ in range(2)]
        return [each.id for each in made], (await rows.create(BOARD, BOARD_FIELDS)).id

    (first, deleted), board = changed(database, scenario)
    reconcile()
    changed(database, lambda rows: rows.delete(MEMBER, deleted))
    reconcile()
    failed_over(  # the rows that have the ids now are others, also the one whose lost namesake was deleted
        ("UPDATE site.member SET nickname = 'another', deleted_at = NULL, created_at = created_at - interval '1 hour',"
         " modified_at = modified_at - interval '1 hour'", None),
        ("UPDATE site.board_document SET modified_at = modified_at - interval '1 hour',"
         " document = document || '{\"createdAt\": \"2026-01-01T00:00:00.000Z\"}'", None),
    )  # fmt: skip
    before = tables(database)
    for _ in range(2):
        with caplog.at_level(logging.INFO), pytest.raises(IdsGivenTwice, match="member=2, board=1"):
            written_back(environment)
    assert re.search(rf"member: 2 ids of a row and of the record .*: {first}, {deleted}\n", caplog.text)
    assert re.search(rf"board: 1 ids of a row and of the record .*: {board}\n", caplog.text)
    written_back(environment, accepts_given_twice=True)
    assert tables(database) == before
    assert written_back(environment) == [(0, 0, 0), (0, 0, 0)]


def test_the_timeline_stays_open_while_a_store_is_not_read(database, environment, reconcile, failed_over, emptied):
    changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS))
    reconcile()
    failed_over(("DELETE FROM site.board_document", None))

    def refuse():
        raise StoresUnread(stores="b")

    with pytest.raises(StoresUnread):
        written_back(environment, require_all_read=refuse)
    with connect(database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM database_timeline WHERE reconciled_at IS NULL")
        assert cursor.fetchall() == [(1,)]
    assert written_back(environment, require_all_read=lambda: None) == [(0, 0, 0), (0, 0, 0)]
    failed_over(("DELETE FROM site.board_document", None))
    assert written_back(environment) == [(0, 0, 0), (1, 0, 0)]


def test_rows_of_a_failover_are_read_as_far_back_as_the_standby_had_them(database, reconcile, environment, failed_over,
                                                                         emptied):  # fmt: skip
    made = changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS))
    reconcile()
    later = SystemClock().now() + dt.timedelta(days=1)
    failed_over(("DELETE FROM site.board_document", None), replayed_until=later)
    with pytest.raises(TimelineTooYoung):
        written_back(environment, since=later, min_age_s=60)
    assert written_back(environment, since=later) == [(0, 0, 0), (0, 0, 0)]
    failed_over(replayed_until=made.modified_at)
    assert written_back(environment, since=later) == [(0, 0, 0), (1, 0, 0)]


def test_a_timeline_that_was_noted_while_the_clock_was_ahead_is_young_for_a_minute(database, environment, failed_over,
                                                                                    emptied):  # fmt: skip
    failed_over()
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE database_timeline SET first_seen_at = now() + interval '1 day'")
    written_back(environment, dry_run=True)
    with connect(database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT bool_and(first_seen_at > now()) FROM database_timeline")
        assert cursor.fetchall() == [(True,)], "a dry run changes nothing"
    with pytest.raises(TimelineTooYoung):
        written_back(environment, min_age_s=60)
    assert written_back(environment) == [(0, 0, 0), (0, 0, 0)]


def test_lost_boards_are_read_as_far_back_as_kafka_has_them(
    broker, database, environment, failed_over, emptied, caplog
):
    made = changed(database, lambda rows: rows.create(BOARD, BOARD_FIELDS))
    early = SystemClock().now() - dt.timedelta(days=2)
    made = replace(made, modified_at=early, value=made.value | {"modifiedAt": rfc3339(early)})
    record = row_record(BOARD, made)
    long_ago = epoch_ms(SystemClock().now() - dt.timedelta(days=2))
    with producers_times(broker.bootstrap_servers, record.topic), sending(broker.bootstrap_servers) as sender:
        sender.send(record.topic, record.value, record.key, headers=record.headers, timestamp=long_ago)
    failed_over(("DELETE FROM site.board_document", None))
    with caplog.at_level(logging.WARNING):
        assert written_back(environment | {"KAFKA_RETENTION_DAYS": "1"}) == [(0, 0, 0), (1, 0, 0)]
    assert "board: records from before" in caplog.text


def test_a_lost_row_whose_record_waits_in_a_fallback_store_is_written_back(
    database, environment, failed_over, emptied, tmp_path
):
    async def scenario(rows):
        made = await rows.create(BOARD, BOARD_FIELDS)
        store = SqliteFallbackStore(tmp_path, SystemClock())
        store.open()
        await store.put(row_record(BOARD, made), "test", may_be_in_kafka=False)
        await store.close()

    changed(database, scenario)
    before = tables(database)
    failed_over(("DELETE FROM site.board_document", None))
    assert written_back(environment, stores=[tmp_path]) == [(0, 0, 0), (1, 0, 0)]
    assert tables(database) == before


def test_database_that_is_out_is_said(environment):
    with pytest.raises(DatabaseUnavailable):
        reconcile_sources(Settings.from_environment(environment | {"DATABASE_PORT": "9"}), Scope(None))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--since", "yesterday"], 2), (["--since", "2026-11-20T00:00:00"], 2), (["--store", "/nowhere"], 78)],
)
def test_wrong_arguments_are_refused(environment, arguments, code, tmp_path):
    process = GatewayProcess.over(tmp_path, "127.0.0.1:9", **environment | {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9"})
    running: subprocess.Popen[bytes] = process.run("pipeline", "gateway", "reconcile", *arguments)
    assert running.wait(timeout=60) == code
