"""What ports.SystemOfRecord promises, asked of the real one and of the fake."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from include.adapters.postgres import connect
from include.adapters.system_of_record import PostgresSystemOfRecord
from include.clock import rfc3339
from include.contracts.topics import BOARD, MEMBER
from include.contracts.validation import violations
from include.errors import DatabaseUnavailable
from include.gateway.ports import SystemOfRecord
from tests.fakes.gateway import FixedClock, MemorySystemOfRecord
from tests.support.database import migrated

MEMBER_FIELDS = {"nickname": "하늘", "city": None, "phone": "010-1234-5678", "email": "sky@example.org"}
BOARD_FIELDS = {"memberId": 7, "title": "제목 % 'quoted'", "body": 'back\\slash "and" 본문 😀'}

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
    return lambda: PostgresSystemOfRecord(database, timeout_s=5)


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


def test_fake_that_is_down_is_unavailable():
    rows = MemorySystemOfRecord(FixedClock())
    rows.is_up = False
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(rows.create(MEMBER, MEMBER_FIELDS))


def test_absent_database_is_unavailable(database):
    with pytest.raises(DatabaseUnavailable):
        run(
            lambda: PostgresSystemOfRecord(replace(database, port=9), 5),
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

    assert len(run(lambda: PostgresSystemOfRecord(database, 5), scenario)) == 20


def test_slow_statement_is_unavailable_and_changed_nothing(database):
    async def scenario(rows):
        made = await rows.create(MEMBER, MEMBER_FIELDS)
        with connect(database, "pipeline_owner") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT nickname FROM member WHERE id = %s FOR UPDATE", (made.id,))
            with pytest.raises(DatabaseUnavailable):
                await rows.update(MEMBER, made.id, MEMBER_FIELDS | {"nickname": "never"})
        return await rows.update(MEMBER, made.id, MEMBER_FIELDS)

    assert run(lambda: PostgresSystemOfRecord(database, 0.2), scenario).value["nickname"] == "하늘"


def test_error_does_not_quote_the_row(database):
    secret = MEMBER_FIELDS | {"nickname": None, "email": "secret@example.org"}
    with pytest.raises(DatabaseUnavailable) as caught:
        run(lambda: PostgresSystemOfRecord(database, 5), lambda rows: rows.create(MEMBER, secret))
    assert "secret" not in str(caught.value)
