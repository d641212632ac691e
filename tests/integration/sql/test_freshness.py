"""The analyst's view of freshness: the lag, the time since which a row is shown, and the rows of a day."""

import datetime as dt
from contextlib import closing

import pytest

from include.integrity.publication import undo
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve, tombstone

FRESHNESS = "SELECT lag_records, lag_s, heartbeat_at - shown_until, last_served_at IS NOT NULL, timezone FROM freshness"
ALIVE = "SELECT is_alive, is_fresh('1 minute'), is_fresh('1 hour') FROM freshness"
HEARTBEAT = "UPDATE stream_progress SET heartbeat_at = now() - interval '%s seconds' WHERE query = %s"
SHOWN = "SELECT board_id, shown_since FROM board_detail_masked WHERE day = %s"
COUNTED = "SELECT day, count(*) FROM board_detail_masked GROUP BY day ORDER BY day"
STATUS = "SELECT day, shown_rows FROM day_status ORDER BY day"
PROGRESS = "INSERT INTO stream_progress (query, driver_id, lag_records, lag_s) VALUES (%s, 'd', %s, %s)"


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


def test_what_waits_in_both_queries_counts(settings):
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1)])
    rows(settings, PROGRESS, ("join", 3, 1.5))
    rows(settings, PROGRESS, ("serve", 4, 2.5))
    assert as_analyst(settings, FRESHNESS) == [(7, 4.0, dt.timedelta(seconds=4), True, "Asia/Seoul")]
    rows(settings, "UPDATE stream_progress SET lag_s = NULL WHERE query = 'join'")
    assert as_analyst(settings, FRESHNESS) == [(7, None, None, True, "Asia/Seoul")]


def test_a_stream_is_fresh_while_both_queries_are_alive_and_their_lag_is_short(settings):
    assert as_analyst(settings, ALIVE) == [(False, False, False)]
    rows(settings, PROGRESS, ("serve", 0, 0))
    assert as_analyst(settings, ALIVE)[0][0] is False  # the other query never ran
    rows(settings, PROGRESS, ("join", 0, 0))
    rows(settings, "UPDATE stream_progress SET heartbeat_at = now() + interval '5 minutes'")  # slow machines too
    assert as_analyst(settings, ALIVE) == [(True, True, True)]
    rows(settings, "UPDATE stream_progress SET lag_s = 600 WHERE query = 'join'")
    assert as_analyst(settings, ALIVE) == [(True, False, True)]
    rows(settings, HEARTBEAT, (1800, "serve"))
    assert as_analyst(settings, ALIVE) == [(False, False, True)]
    rows(settings, HEARTBEAT, (4000, "join"))
    assert as_analyst(settings, ALIVE) == [(False, False, False)]
    rows(settings, "UPDATE stream_progress SET heartbeat_at = now(), lag_s = NULL")
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
