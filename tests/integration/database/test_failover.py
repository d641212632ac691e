"""A standby is promoted that lacks what the primary wrote last: two real servers, one copying the other."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import DatabaseUnavailable, DriverSuperseded, TimelineChanged
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger
from include.database.sessions import connect, open_connection
from include.integrity.days.certificate import Certificate
from include.integrity.days.due_days import days_to_rebuild
from include.runtime.settings import Settings
from tests.servers import PostgresTestServer, postgres_server
from tests.support.certifying import certify_alone
from tests.support.pipeline import environment, migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, row
from tests.support.standby import promote, standby_of, wait_until_replayed

MEMBER = "INSERT INTO site.member (nickname, created_at, modified_at) VALUES (%s, now(), now()) RETURNING id"
MEMBERS = "SELECT nickname FROM site.member ORDER BY id"
TIMELINES = "SELECT timeline, replayed_until IS NOT NULL FROM database_timeline ORDER BY first_seen_at"
RECONCILED = "UPDATE database_timeline SET reconciled_at = now()"
YESTERDAY = Day.of(SystemClock().now(), DAY.zone).before(1)


@dataclass(frozen=True)
class FailedOver:
    """The settings of a client that is led to the promoted standby, and what the old primary had given out and seen.

    `known` is a lease whose taking was received by the standby, and `lost` one that was taken later.
    """

    settings: Settings
    standby: PostgresTestServer
    member_id: int
    noted_on_standby: object
    known: DriverLease
    lost: DriverLease
    generation_id: int
    first: Certificate


def signed_up(settings: Settings, nickname: str) -> int:
    with connect(settings.database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute(MEMBER, (nickname,))
        return int(cursor.fetchone()[0])


def at(settings: Settings, server: PostgresTestServer) -> Settings:
    return replace(settings, database=replace(settings.database, host=server.host, port=server.port))


def taken(settings: Settings, driver_id: str, query: str) -> DriverLease:
    lease = DriverLease(settings.database, driver_id, [query])
    lease.take()
    OffsetLedger(settings.database).open(query, "board", "t", {0: 7}, lease)
    return lease


@pytest.fixture(scope="module")
def failed_over(tmp_path_factory) -> Iterator[FailedOver]:
    folder = tmp_path_factory.mktemp("failover")
    with postgres_server(tmp_path_factory.mktemp("primary")) as primary:
        primary_settings = migrated(None, primary, "failover", folder)
        standby = standby_of(primary, tmp_path_factory.mktemp("standby"))
        try:
            standby.start()
            signed_up(primary_settings, "kept")
            known = taken(primary_settings, "one", "join")
            build(primary_settings, [row(1, 1)], cut=9, run_id="kept")
            publish(primary_settings, DAY, "kept")
            first = certify_alone(primary_settings, DAY)
            wait_until_replayed(primary, standby)
            [(noted,)] = rows(at(primary_settings, standby), "SELECT note_timeline()", role="batch")
            for role in ("gateway", "stream", "batch"):
                with pytest.raises(DatabaseUnavailable, match="is a standby"):
                    open_connection(at(primary_settings, standby).database, role)
            for role in ("integrity", "analyst"):
                open_connection(at(primary_settings, standby).database, role).close()
            standby.stop()
            lost_id = signed_up(primary_settings, "lost")
            lost = taken(primary_settings, "two", "serve")
            generation_id = build(primary_settings, [], cut=9, run_id="lost", day=YESTERDAY)
            publish(primary_settings, YESTERDAY, "lost")
            primary.kill()
            standby.start()
            promote(standby)
            both = environment(None, primary, "failover", folder) | {
                "DATABASE_HOST": f"{primary.host},{standby.host}",
                "DATABASE_TARGET_SESSION_ATTRS": "read-write",
            }  # fmt: skip
            yield FailedOver(
                Settings.from_environment(both), standby, lost_id, noted, known, lost, generation_id, first
            )
        finally:
            standby.stop()


@pytest.fixture
def settings(failed_over) -> Settings:
    """Of a client of the promoted standby; each test leaves the timeline as it was after the first session."""
    with closing(open_connection(failed_over.settings.database, "gateway")):
        return failed_over.settings


@pytest.fixture
def there(failed_over, settings) -> Settings:
    return at(settings, failed_over.standby)


def test_the_first_session_on_the_promoted_standby_notes_its_timeline(failed_over, there):
    (first, is_loss_known), (second, is_later_loss_known) = rows(there, TIMELINES)
    assert (is_loss_known, is_later_loss_known) == (False, True)
    assert second == first.removesuffix("/1") + "/2"
    assert rows(there, "SELECT current_timeline()") == [(second,)]


def test_a_session_on_a_standby_notes_nothing(failed_over):
    assert failed_over.noted_on_standby is None


def test_an_id_that_was_lost_is_not_given_again(failed_over, settings, there):
    assert [name for (name,) in rows(there, MEMBERS)][:1] == ["kept"]
    assert signed_up(settings, "new") > failed_over.member_id + 900_000
    generation_id = build(settings, [], cut=9, run_id="later", day=DAY.before(5))
    assert generation_id > failed_over.generation_id


@pytest.mark.parametrize("lease", ["known", "lost"])
def test_a_driver_that_took_its_lease_on_the_old_primary_writes_nothing(failed_over, settings, lease):
    held = getattr(failed_over, lease)
    # the first transaction finds its connection dead, as the driver does
    mine = DriverLease(settings.database, held.driver_id, held.queries)
    mine.epoch, mine._timeline = held.epoch, held._timeline
    if lease == "lost":
        taken(settings, "older", "serve")
    with pytest.raises(TimelineChanged, match=r"taken_on=\d+/1, present=\d+/2"):
        mine.check()
    mine.take()
    mine.check()


def test_a_driver_that_never_took_a_lease_is_told_that_and_not_the_timeline(settings):
    taken(settings, "a", "join")
    with pytest.raises(DriverSuperseded) as raised:
        DriverLease(settings.database, "b", ["join"]).check()
    assert raised.type is DriverSuperseded


def test_no_day_is_certified_until_lost_rows_are_written_back(failed_over, settings, there):
    assert (failed_over.first.reason, failed_over.first.count("unrecovered")) == (None, 0)
    rows(there, "UPDATE database_timeline SET reconciled_at = NULL WHERE timeline LIKE '%/2'")
    certificate = certify_alone(settings, DAY)
    assert certificate.count("unrecovered") == 1
    assert "run `pipeline gateway reconcile`" in certificate.reason
    assert not certificate.needs_only_rebuild
    rows(there, RECONCILED)
    assert certify_alone(settings, DAY).reason is None


def test_a_publication_that_was_lost_is_made_again_by_the_next_night(settings, there):
    assert rows(there, "SELECT day FROM day_publication WHERE day = %s", (YESTERDAY.date,)) == []
    assert rows(there, "SELECT count(*) FROM day_publication WHERE day = %s", (DAY.date,)) == [(1,)]
    chosen = days_to_rebuild(settings, YESTERDAY, lambda _, days: {day.date for day in days} & {YESTERDAY.date})
    assert chosen == [str(YESTERDAY)]


@pytest.mark.parametrize(("newest", "begins"), [("2026-01-01 00:00:00+00", "2026-01-01 00:00:00+00"), (None, None)])
def test_the_loss_begins_no_later_than_the_newest_row_that_is_there(failed_over, settings, there, newest, begins):
    """A dump that is restored here is older than the promotion, which the server still tells."""
    rows(there, "UPDATE site.member SET modified_at = %s" if newest else "DELETE FROM site.member",
         (newest,) if newest else None)  # fmt: skip
    rows(there, "DELETE FROM database_timeline WHERE timeline = current_timeline()")
    with closing(open_connection(settings.database, "gateway")):
        noted = "SELECT replayed_until::text FROM database_timeline WHERE timeline = current_timeline()"
        assert rows(there, noted) == [(begins,)]
        assert rows(there, "SELECT pg_last_xact_replay_timestamp() > '2026-01-02'", role="batch") == [(True,)]
    rows(there, RECONCILED)
