"""The analyst's view of freshness: the lag, the time since which a row is shown, and the rows of a day."""

import datetime as dt
from contextlib import closing

import pytest

from include.contracts.clock import SystemClock
from include.database import stream_progress
from include.database.stream_progress import Progress, StreamProgressStore
from include.integrity.days.publication import undo
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve, tombstone
from tests.support.topic_log import taken_lease

FRESHNESS = "SELECT lag_records, lag_s, heartbeat_at - shown_until, last_served_at IS NOT NULL, timezone FROM freshness"
ALIVE = "SELECT is_alive, is_fresh('1 minute'), is_fresh('1 hour') FROM freshness"
HEARTBEAT = "UPDATE stream_progress SET heartbeat_at = now() - interval '%s seconds' WHERE query = %s"
SHOWN = "SELECT board_id, shown_since FROM board_detail_masked WHERE day = %s"
COUNTED = "SELECT day, count(*) FROM board_detail_masked GROUP BY day ORDER BY day"
STATUS = "SELECT day, shown_rows FROM day_status ORDER BY day"
PROGRESS = "INSERT INTO stream_progress (query, driver_id, lag_records, watermark) VALUES (%s, 'd', %s, %s)"
WATERMARK = "INSERT INTO stream_watermark (at, watermark) VALUES (%s, %s)"


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "freshness", tmp_path)


def as_analyst(settings, statement, *parameters):
    return rows(settings, statement, parameters, role="analyst")


def now(settings):
    return rows(settings, "SELECT clock_timestamp()")[0][0]


def changed_since(settings, before):
    return {board_id for board_id, since in as_analyst(settings, SHOWN, DAY.date) if since > before}


def test_nothing_is_known_of_a_stream_that_never_ran(settings):
    assert as_analyst(settings, FRESHNESS) == [(None, None, None, False, "Asia/Seoul")]


def test_what_is_shown_had_been_joined_when_what_is_served_was_written(settings):
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1)])
    ((heartbeat,),) = rows(settings, "SELECT now()")

    def ago(seconds):
        return heartbeat - dt.timedelta(seconds=seconds)

    rows(settings, PROGRESS, ("join", 3, ago(1)))
    rows(settings, PROGRESS, ("serve", 4, ago(30)))
    assert as_analyst(settings, FRESHNESS) == [(7, None, None, True, "Asia/Seoul")]
    for at, watermark in ((0, 1), (29, 60), (31, 80), (50, 70)):  # the last one was of another driver
        rows(settings, WATERMARK, (ago(at), ago(watermark)))
    rows(settings, "UPDATE stream_progress SET heartbeat_at = %s", (heartbeat,))
    assert as_analyst(settings, FRESHNESS) == [(7, 70.0, dt.timedelta(seconds=70), True, "Asia/Seoul")]
    rows(settings, "UPDATE stream_progress SET watermark = NULL WHERE query = 'serve'")
    assert as_analyst(settings, FRESHNESS) == [(7, None, None, True, "Asia/Seoul")]


def test_watermarks_are_kept_for_six_hours_the_older_the_fewer(settings):
    ago = "now() - make_interval(secs => s)"
    rows(settings, f"INSERT INTO stream_watermark SELECT {ago}, {ago} FROM generate_series(-60, 30000) s")
    lease = taken_lease(settings)
    with closing(StreamProgressStore(settings.database, lease=lease)) as store:
        store.save([Progress("join", "d", 1, None, 0, None, 0, *[None] * 8, SystemClock().now())])
    lease.release()
    saved_ago = "SELECT extract(epoch FROM max(at) OVER () - at)::float FROM stream_watermark"
    ages = [age for (age,) in rows(settings, saved_ago)]
    assert 30 <= len([age for age in ages if age < 31]) <= 33
    assert 37 <= len([age for age in ages if 31 <= age < 600]) <= 41
    assert 33 <= len([age for age in ages if age >= 600]) <= 37
    assert max(ages) < 6 * 3600 + 60


def saved(settings, *taken_ago_s):
    """Save the progress of join, with what it had taken so many seconds ago, None if it is not known; return it."""
    lease = taken_lease(settings)
    with closing(StreamProgressStore(settings.database, lease=lease)) as store:
        for ago_s in taken_ago_s:
            until = None if ago_s is None else SystemClock().now() - dt.timedelta(seconds=ago_s)
            store.save([Progress("join", "d", 1, None, 0, None, 0, *[None] * 6, {"sent": 7}, None, until)])
        [seen] = store.read()
    lease.release()
    return seen


@pytest.mark.parametrize("ahead", ["1 minute", "1 day", "1 year"])
@pytest.mark.parametrize("taken_ago_s", [3.0, None])
def test_what_was_promised_while_the_servers_clock_was_ahead_is_taken_back(settings, ahead, taken_ago_s):
    saved(settings, 5.0)
    rows(settings, f"UPDATE stream_progress SET watermark = watermark + interval '{ahead}'")
    rows(settings, f"INSERT INTO stream_watermark SELECT now() + i, now() + i FROM (SELECT interval '{ahead}') a (i)")
    saved(settings, taken_ago_s)
    ((watermark,),) = rows(settings, "SELECT watermark FROM stream_progress")
    assert (watermark is None) == (taken_ago_s is None)
    assert watermark is None or watermark < now(settings)
    assert rows(settings, "SELECT at FROM stream_watermark WHERE at > now() OR watermark > now()") == []


@pytest.mark.parametrize("ahead", ["1 minute", "1 day", "1 year"])
def test_a_heartbeat_from_the_future_is_no_sign_of_life(settings, ahead):
    """The server's clock was ahead, and the driver died before it was corrected."""
    present = now(settings)
    for query in ("serve", "join"):
        rows(settings, PROGRESS, (query, 0, present))
    rows(settings, WATERMARK, (present, present))
    assert as_analyst(settings, ALIVE) == [(True, True, True)]
    rows(settings, f"UPDATE stream_progress SET heartbeat_at = now() + i, watermark = now() + i"
                   f"  FROM (SELECT interval '{ahead}') a (i)")  # fmt: skip
    rows(settings, f"INSERT INTO stream_watermark SELECT now() + i, now() + i FROM (SELECT interval '{ahead}') a (i)")
    rows(settings, "DELETE FROM stream_watermark WHERE watermark = %s", (present,))
    assert as_analyst(settings, ALIVE) == [(False, False, False)]
    with closing(StreamProgressStore(settings.database)) as store:
        assert all(seen.age_s > 30 for seen in store.read())


def test_a_driver_says_how_far_its_clock_is_from_the_servers(settings, monkeypatch):
    seen = saved(settings, None)
    assert (seen.progress.metrics, seen.clock_ahead_s) == ({"sent": 7}, pytest.approx(0, abs=60))
    wrong = SystemClock().now() + dt.timedelta(days=1)
    monkeypatch.setattr(stream_progress.SystemClock, "now", lambda _: wrong)
    assert saved(settings, None).clock_ahead_s == pytest.approx(86_400, abs=60)


def test_a_stream_is_fresh_while_both_queries_are_alive_and_their_lag_is_short(settings):
    assert as_analyst(settings, ALIVE) == [(False, False, False)]
    present = now(settings)
    later = present + dt.timedelta(seconds=9)  # slow machines too
    rows(settings, PROGRESS, ("serve", 0, later))
    assert as_analyst(settings, ALIVE)[0][0] is False  # the other query never ran
    rows(settings, PROGRESS, ("join", 0, later))
    rows(settings, WATERMARK, (present, present))
    rows(settings, "UPDATE stream_progress SET heartbeat_at = %s", (later,))
    assert as_analyst(settings, ALIVE) == [(True, True, True)]
    rows(settings, "UPDATE stream_watermark SET watermark = now() - interval '10 minutes'")
    assert as_analyst(settings, ALIVE) == [(True, False, True)]
    rows(settings, HEARTBEAT, (1800, "serve"))
    assert as_analyst(settings, ALIVE) == [(False, False, True)]
    rows(settings, "UPDATE stream_watermark SET watermark = now() - interval '61 minutes'")
    assert as_analyst(settings, ALIVE) == [(False, False, False)]
    rows(settings, "DELETE FROM stream_watermark")
    assert as_analyst(settings, ALIVE)[0][1:] == (False, False)


def test_an_incremental_reader_sees_each_change_of_what_is_shown(settings):
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1), row(2, 2)])
        began = now(settings)
        assert changed_since(settings, began) == set()
        serve(store, [row(2, 3)])
        assert changed_since(settings, began) == {2}

        began = now(settings)
        build(settings, [row(1, 1), row(2, 3)], cut=4, run_id="r")
        publish(settings, DAY, "r")
        assert changed_since(settings, began) == {1, 2}  # final now

        began = now(settings)
        serve(store, [row(1, 5), row(3, 6)])
        assert changed_since(settings, began) == {1, 3}

        began = now(settings)
        undo(settings, DAY, "a test", to=0)
        assert changed_since(settings, began) == {1, 2, 3}  # live again, as they were before


def test_the_rows_of_a_day_are_counted_as_they_are_shown(settings):
    day = DAY.before(1)
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1), row(2, 2), row(3, 3), row(9, 4, day=day.date)])
        assert as_analyst(settings, STATUS) == as_analyst(settings, COUNTED) == [(day.date, 1), (DAY.date, 3)]
        build(settings, [row(1, 1), row(2, 2), row(3, 3)], cut=5, run_id="r")
        publish(settings, DAY, "r")
        assert as_analyst(settings, STATUS) == as_analyst(settings, COUNTED) == [(day.date, 1), (DAY.date, 3)]
        serve(store, [row(1, 6, title="edited"), row(4, 7), tombstone(3, 8)])
        assert as_analyst(settings, STATUS) == as_analyst(settings, COUNTED) == [(day.date, 1), (DAY.date, 3)]
        (counts,) = as_analyst(settings, "SELECT row_count, live_row_count FROM day_status WHERE day = %s", DAY.date)
        assert sum(counts) == 5


def test_a_day_that_is_not_there_shows_nothing(settings):
    assert as_analyst(settings, "SELECT shown_rows('2001-01-01')") == [(None,)]
