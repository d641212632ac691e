"""The contract of ports.SystemOfRecord, tested on the real one and on the fake."""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import psycopg2
import pytest

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import DatabaseClockAhead, DatabaseUnavailable
from include.contracts.pipelines import BOARD, MEMBER
from include.contracts.validation import violations
from include.database.sessions import connect
from include.gateway.broker_clock import BrokerClock
from include.gateway.ports import ChangeKey, KeyReused, SystemOfRecord
from include.gateway.system_of_record import PostgresSystemOfRecord
from tests.fakes.gateway import FixedClock, MemorySystemOfRecord
from tests.support.database import migrated
from tests.support.freezing import freeze

pytestmark = pytest.mark.servers

MEMBER_FIELDS = {"nickname": "하늘", "city": None, "phone": "010-1234-5678", "email": "sky@example.org"}
BOARD_FIELDS = {"memberId": 7, "title": "제목 % 'quoted'", "body": 'back\\slash "and" 본문 😀'}

CLOCK = BrokerClock(SystemClock())
both_topics = pytest.mark.parametrize(
    ("topic", "fields"), [(MEMBER, MEMBER_FIELDS), (BOARD, BOARD_FIELDS)], ids=["member", "board"]
)


@pytest.fixture(scope="module")
def database(postgres):
    return migrated(postgres, "system_of_record_port")


@pytest.fixture(params=["fake", "real"])
def make(request):
    """Makes a system of record over the same rows each time."""
    if request.param == "fake":
        fake = MemorySystemOfRecord(FixedClock())
        return lambda: fake
    database = request.getfixturevalue("database")
    return lambda: PostgresSystemOfRecord(database, CLOCK, timeout_s=5)


def run(make, scenario: Callable[[SystemOfRecord], Awaitable[object]]) -> object:
    async def main():
        system_of_record = make()
        try:
            async with asyncio.timeout(30):
                return await scenario(system_of_record)
        finally:
            await system_of_record.close()

    return asyncio.run(main())


@both_topics
@pytest.mark.parametrize("kind", ["fake", "real"])
def test_a_gateway_whose_clock_is_behind_and_was_not_compared_changes_rows(request, kind, topic, fields):
    """It does not know whose clock is wrong, and would never learn it if it refused all changes."""
    machine = FixedClock(SystemClock().now() - timedelta(days=1))
    clock = BrokerClock(machine)
    if kind == "fake":
        rows = MemorySystemOfRecord(FixedClock(SystemClock().now()), gateway_clock=clock)
    else:
        rows = PostgresSystemOfRecord(request.getfixturevalue("database"), clock, 5)

    async def scenario(system_of_record):
        made = await system_of_record.create(topic, fields)
        return [await system_of_record.update(topic, made.id, fields), await system_of_record.delete(topic, made.id)]

    assert all(run(lambda: rows, scenario))


@both_topics
def test_created_row_has_an_id_times_and_the_contracts_value(make, topic, fields):
    async def scenario(rows):
        return [await rows.create(topic, fields) for _ in range(2)]

    first, second = run(make, scenario)
    assert second.id > first.id
    assert first.created_at == first.modified_at
    assert violations(topic, first.value) == []
    at = rfc3339(first.created_at)
    assert first.value == {"id": first.id, **fields, "createdAt": at, "modifiedAt": at}


@both_topics
@pytest.mark.parametrize("kind", ["fake", "real"])
def test_a_database_whose_clock_is_ahead_changes_nothing(request, kind, topic, fields):
    """Readers would reject the records, and nothing would show that the rows were changed."""
    tolerance = topic.clock_tolerance
    if kind == "fake":
        rows = MemorySystemOfRecord(FixedClock())
    else:
        database = request.getfixturevalue("database")
        clock = FixedClock(SystemClock().now())
        rows = PostgresSystemOfRecord(database, clock, 5)
    name = "nickname" if topic is MEMBER else "title"
    moved = {**fields, name: "moved"}

    def move(ahead):
        if kind == "fake":
            rows.ahead = ahead
        else:
            clock.instant = SystemClock().now() - ahead

    async def scenario(system_of_record):
        made = await system_of_record.create(topic, fields)
        move(tolerance + timedelta(seconds=30))
        for change in (
            lambda: system_of_record.create(topic, fields),
            lambda: system_of_record.update(topic, made.id, moved),
            lambda: system_of_record.delete(topic, made.id),
        ):
            with pytest.raises(DatabaseClockAhead):
                await change()
        move(tolerance - timedelta(seconds=30))
        after = await system_of_record.update(topic, made.id, moved)
        return made, after, await system_of_record.create(topic, fields)

    made, after, another = run(lambda: rows, scenario)
    assert after is not None
    assert after.value == {**after.value, **moved}
    assert another.id > made.id


@both_topics
def test_updated_row_keeps_its_creation_and_is_newer_each_time(make, topic, fields):
    changed = {name: f"new {value}" if isinstance(value, str) else value for name, value in fields.items()}

    async def scenario(rows):
        made = await rows.create(topic, fields)
        return made, [await rows.update(topic, made.id, changed) for _ in range(20)]

    made, updates = run(make, scenario)
    versions = [made.modified_at, *(update.modified_at for update in updates)]
    assert versions == sorted(set(versions))
    assert {update.created_at for update in updates} == {made.created_at}
    expected = {"id": made.id, **changed, "createdAt": rfc3339(made.created_at)}
    assert updates[-1].value == expected | {"modifiedAt": rfc3339(updates[-1].modified_at)}


@both_topics
def test_concurrent_updates_of_a_row_all_get_versions_of_their_own(make, topic, fields):
    async def scenario(rows):
        made = await rows.create(topic, fields)
        updates = await asyncio.gather(*[rows.update(topic, made.id, fields) for _ in range(30)])
        return [made.modified_at, *(update.modified_at for update in updates)]

    versions = run(make, scenario)
    assert len(set(versions)) == len(versions)
    assert all(version.microsecond % 1000 == 0 for version in versions)


@both_topics
def test_deleted_row_is_gone_and_its_deletion_is_newer(make, topic, fields):
    async def scenario(rows):
        made = await rows.create(topic, fields)
        deleted = await rows.delete(topic, made.id)
        return made, deleted, await rows.delete(topic, made.id), await rows.update(topic, made.id, fields)

    made, deleted, again, updated = run(make, scenario)
    assert (deleted.id, deleted.value) == (made.id, None)
    assert deleted.modified_at > made.modified_at
    assert (again, updated) == (None, None)


@both_topics
def test_unknown_row_is_none(make, topic, fields):
    async def scenario(rows):
        return await rows.update(topic, 2**62, fields), await rows.delete(topic, 2**62)

    assert run(make, scenario) == (None, None)


KEY = ChangeKey("token-a", "key-1", b"f" * 32)


def keys(request, number: int = 1) -> ChangeKey:
    """A key of this test's own: the database is shared."""
    return ChangeKey(request.node.nodeid, f"key-{number}", b"f" * 32)


@both_topics
def test_change_with_the_same_key_is_made_once_and_told_again(make, request, topic, fields):
    changed = {name: f"new {value}" if isinstance(value, str) else value for name, value in fields.items()}

    async def scenario(rows):
        made = [await rows.create(topic, fields, keys(request, 1)) for _ in range(2)]
        other = await rows.create(topic, fields, keys(request, 2))
        updated = [await rows.update(topic, made[0].id, changed, keys(request, 3)) for _ in range(2)]
        again = await rows.create(topic, fields, keys(request, 1))
        deleted = [await rows.delete(topic, made[0].id, keys(request, 4)) for _ in range(2)]
        return made, other, updated, again, deleted

    made, other, updated, again, deleted = run(make, scenario)
    assert made[0] == made[1] == again
    assert other.id != made[0].id
    assert updated[0] == updated[1]
    assert updated[0].value == {**made[0].value, **changed, "modifiedAt": rfc3339(updated[0].modified_at)}
    assert list(updated[1].value) == [field.name for field in topic.fields]
    assert deleted[0] == deleted[1]
    assert (deleted[0].id, deleted[0].value) == (made[0].id, None)


def test_key_belongs_to_its_scope(make, request):
    async def scenario(rows):
        mine = await rows.create(MEMBER, MEMBER_FIELDS, keys(request))
        return mine, await rows.create(MEMBER, MEMBER_FIELDS, replace(keys(request), scope=request.node.nodeid + "b"))

    mine, theirs = run(make, scenario)
    assert mine.id != theirs.id


def test_key_of_another_call_is_refused_and_changes_nothing(make, request):
    other = replace(keys(request), fingerprint=b"o" * 32)

    async def scenario(rows):
        made = await rows.create(MEMBER, MEMBER_FIELDS, keys(request))
        with pytest.raises(KeyReused):
            await rows.update(MEMBER, made.id, MEMBER_FIELDS | {"nickname": "never"}, other)
        return made, await rows.update(MEMBER, made.id, MEMBER_FIELDS)

    made, updated = run(make, scenario)
    assert updated.value == made.value | {"modifiedAt": rfc3339(updated.modified_at)}


def test_change_that_found_no_row_leaves_its_key_unused(make, request):
    async def scenario(rows):
        missing = await rows.update(MEMBER, 2**62, MEMBER_FIELDS, keys(request))
        made = await rows.create(MEMBER, MEMBER_FIELDS)
        return missing, await rows.update(MEMBER, made.id, MEMBER_FIELDS, replace(keys(request), fingerprint=b"o" * 32))

    missing, updated = run(make, scenario)
    assert missing is None
    assert updated is not None


def test_calls_with_one_key_at_the_same_time_make_one_row(make, request):
    async def scenario(rows):
        return await asyncio.gather(*[rows.create(MEMBER, MEMBER_FIELDS, keys(request)) for _ in range(20)])

    assert len({saved.id for saved in run(make, scenario)}) == 1


def test_two_gateways_with_one_key_make_one_row(database, request):
    async def scenario(first):
        second = PostgresSystemOfRecord(database, CLOCK, timeout_s=5)
        try:
            calls = [rows.create(MEMBER, MEMBER_FIELDS, keys(request)) for rows in (first, second) * 10]
            return await asyncio.gather(*calls)
        finally:
            await second.close()

    assert len({saved.id for saved in run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario)}) == 1


def test_two_gateways_changing_a_row_make_versions_that_all_differ(database):
    """Their records may reach the topic in another order: the newest version is the last one in the database."""

    async def scenario(first):
        second = PostgresSystemOfRecord(database, CLOCK, timeout_s=5)
        try:
            made = await first.create(MEMBER, MEMBER_FIELDS)
            changes = [
                rows.update(MEMBER, made.id, MEMBER_FIELDS | {"nickname": f"n{number}"})
                for number, rows in enumerate((first, second) * 15)
            ]
            return made, await asyncio.gather(*changes), await first.update(MEMBER, made.id, MEMBER_FIELDS)
        finally:
            await second.close()

    made, changes, last = run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario)
    versions = {made.modified_at, *(change.modified_at for change in changes)}
    assert len(versions) == 31
    assert last.modified_at > max(versions)


def test_key_past_the_window_is_new_and_in_the_end_deleted(database, request):
    async def scenario(rows):
        first = await rows.create(MEMBER, MEMBER_FIELDS, keys(request))
        return first, await rows.create(MEMBER, MEMBER_FIELDS, replace(keys(request), fingerprint=b"o" * 32))

    first, second = run(lambda: PostgresSystemOfRecord(database, CLOCK, 5, key_window_s=1e-6), scenario)
    assert first.id != second.id
    run(
        lambda: PostgresSystemOfRecord(database, CLOCK, 5, key_window_s=1e-6),
        lambda rows: rows.create(MEMBER, MEMBER_FIELDS, keys(request, 2)),
    )  # its end waits for the deletion
    assert count(database, "SELECT count(*) FROM site.change_key WHERE scope = %s", request.node.nodeid) == 0


def test_many_expired_keys_are_deleted_in_the_course_of_changes(database, request):
    insert = """
        INSERT INTO site.change_key (scope, key, fingerprint, topic, made_at)
        SELECT %s, n::text, '', 'member', now() - interval '2 days' FROM generate_series(1, 3500) AS n
    """
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute(insert, (request.node.nodeid,))
    left = [3500]

    async def scenario(rows):
        changes = 0
        while left[-1]:
            changes += 1
            await rows.create(MEMBER, MEMBER_FIELDS, keys(request, -changes))
            left.append(
                count(database, "SELECT count(*) FROM site.change_key WHERE made_at < now() - interval '1 day'")
            )
        return changes

    assert run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario)
    assert left == sorted(left, reverse=True)


def test_fake_forgets_keys_past_the_window_too():
    clock = FixedClock()
    rows = MemorySystemOfRecord(clock, key_window_s=60)

    async def scenario():
        first = await rows.create(MEMBER, MEMBER_FIELDS, KEY)
        clock.advance(61)
        return first, await rows.create(MEMBER, MEMBER_FIELDS, KEY)

    first, second = asyncio.run(scenario())
    assert first.id != second.id


def test_fake_that_is_down_is_unavailable():
    rows = MemorySystemOfRecord(FixedClock())
    rows.is_up = False
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(rows.create(MEMBER, MEMBER_FIELDS))


def test_absent_database_is_unavailable(database):
    with pytest.raises(DatabaseUnavailable):
        run(
            lambda: PostgresSystemOfRecord(replace(database, port=9), CLOCK, 5),
            lambda rows: rows.create(MEMBER, MEMBER_FIELDS),
        )


def test_goes_on_after_the_server_cut_its_idle_connections(database):
    async def scenario(rows):
        await asyncio.gather(*[rows.create(MEMBER, MEMBER_FIELDS) for _ in range(20)])
        with connect(database, "gateway") as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE usename = 'gateway' AND pid <> pg_backend_pid()"
            )
            assert cursor.fetchone()[0] > 0
        return await asyncio.gather(*[rows.create(MEMBER, MEMBER_FIELDS) for _ in range(20)])

    assert len(run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario)) == 20


def test_slow_statement_is_unavailable_and_changed_nothing(database):
    async def scenario(rows):
        made = await rows.create(MEMBER, MEMBER_FIELDS)
        with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT nickname FROM site.member WHERE id = %s FOR UPDATE", (made.id,))
            with pytest.raises(DatabaseUnavailable):
                await rows.update(MEMBER, made.id, MEMBER_FIELDS | {"nickname": "never"})
        return await rows.update(MEMBER, made.id, MEMBER_FIELDS)

    assert run(lambda: PostgresSystemOfRecord(database, CLOCK, 0.2), scenario).value["nickname"] == "하늘"


def test_waiting_for_a_slow_database_is_bounded_and_begins_nothing_late(database):
    async def scenario(rows):
        made = await rows.create(MEMBER, MEMBER_FIELDS)
        before = count(database, "SELECT count(*) FROM site.member")
        with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
            cursor.execute("LOCK TABLE site.member IN EXCLUSIVE MODE")
            changes = [rows.create(MEMBER, MEMBER_FIELDS) for _ in range(40)]
            changes += [rows.update(MEMBER, made.id, MEMBER_FIELDS) for _ in range(300)]
            results = await asyncio.gather(*changes, return_exceptions=True)
        assert {type(result) for result in results} == {DatabaseUnavailable}
        return before, await rows.update(MEMBER, made.id, MEMBER_FIELDS)

    before, updated = run(lambda: PostgresSystemOfRecord(database, CLOCK, 0.3), scenario)
    assert updated.value["nickname"] == "하늘"
    assert count(database, "SELECT count(*) FROM site.member") == before


def test_read_only_database_is_unavailable_and_back_again(database, postgres):
    def scenario(rows):
        return rows.create(MEMBER, MEMBER_FIELDS, KEY)

    administrate(postgres, f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    try:
        with pytest.raises(DatabaseUnavailable, match="25006"):
            run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario)
    finally:
        administrate(postgres, f"ALTER DATABASE {database.name} RESET default_transaction_read_only")
    assert run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario).id


def test_silent_database_is_unavailable_and_leaves_no_thread_behind(database):
    stopped: list[int] = []

    async def scenario(rows):
        await asyncio.gather(*[rows.create(MEMBER, MEMBER_FIELDS) for _ in range(20)])
        with connect(database, "gateway") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE usename = 'gateway' AND pid <> pg_backend_pid()")
            stopped.extend(pid for [pid] in cursor.fetchall())
        freeze(stopped)
        changes = [rows.create(MEMBER, MEMBER_FIELDS) for _ in range(len(stopped))]
        results = await asyncio.gather(*changes, return_exceptions=True)
        return results, await rows.create(MEMBER, MEMBER_FIELDS)

    try:
        results, made = run(lambda: PostgresSystemOfRecord(database, CLOCK, 0.2), scenario)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert {type(result) for result in results} == {DatabaseUnavailable}
    assert made.id
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("system-of-record")]


def test_failures_leave_no_connection_behind(database, request):
    async def scenario(rows):
        made = await rows.create(MEMBER, MEMBER_FIELDS, keys(request))
        reused = replace(keys(request), fingerprint=b"o" * 32)
        for _ in range(10):
            with pytest.raises(KeyReused):
                await rows.delete(MEMBER, made.id, reused)
            with pytest.raises(DatabaseUnavailable):
                await rows.create(MEMBER, MEMBER_FIELDS | {"nickname": None})
        return count(database, "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", "gateway")

    assert run(lambda: PostgresSystemOfRecord(database, CLOCK, 5), scenario) <= 2


def administrate(postgres, statement: str) -> None:
    connection = psycopg2.connect(postgres.superuser_dsn())
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


def count(database, statement: str, *parameters: object) -> int:
    with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0]


def test_error_does_not_quote_the_row(database):
    secret = MEMBER_FIELDS | {"nickname": None, "email": "secret@example.org"}
    with pytest.raises(DatabaseUnavailable) as caught:
        run(
            lambda: PostgresSystemOfRecord(database, CLOCK, 5),
            lambda rows: rows.create(MEMBER, secret),
        )
    assert "secret" not in str(caught.value)
