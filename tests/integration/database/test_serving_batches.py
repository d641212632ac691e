"""Batches of the serve query on a real PostgreSQL: ledger, duplicates, pending boards, days; each takes effect once."""

import datetime as dt
import random
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import ANY

import pytest

from include.contracts.errors import LedgerConflict
from include.integrity.days import publication
from include.integrity.days.comparison import verify
from spark_jobs.speed.live_table import Applied
from tests.servers import wait_until
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, applied, build, opened_store, pending, row, serve, tombstone
from tests.support.sessions import held_up, is_waiting, locked

LATER = NOON + dt.timedelta(minutes=1)
LEDGER = "SELECT partition, next_offset FROM offset_ledger ORDER BY partition"
VIEW = "SELECT board_id, title, finality FROM board_detail ORDER BY board_id"


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "serving_batches", tmp_path)


@pytest.fixture
def store(settings):
    opened = opened_store(settings)
    yield opened
    opened.close()


def test_the_ledger_moves_with_the_rows_or_not_at_all(settings, store):
    serve(store, [row(1, 4)])
    assert rows(settings, LEDGER) == [(0, 5)]

    with held_up(settings, "detail_live", lambda: serve(store, [row(2, 5)])) as serving:
        rows(settings, "UPDATE offset_ledger SET next_offset = 7")
    with pytest.raises(LedgerConflict):
        serving.result()
    assert rows(settings, LEDGER) == [(0, 7)]
    assert rows(settings, VIEW) == [(1, "v4", "live")]


def test_a_batch_given_again_takes_no_effect_again(settings, store):
    assert serve(store, [row(1, 0), row(2, 1)]) == 2
    assert applied(store, [row(1, 0), row(2, 1)]) == Applied(phases_s=ANY)
    assert serve(store, [row(1, 0), row(2, 1), row(3, 2)]) == 1
    assert rows(settings, LEDGER) == [(0, 3)]


def test_a_ledger_that_was_set_back_is_refused_not_gone_on_from(settings, store):
    serve(store, [row(1, 0), row(2, 1)])
    rows(settings, "UPDATE offset_ledger SET next_offset = 1")  # as in a database restored from a backup
    with pytest.raises(LedgerConflict, match="set back"):
        serve(store, [row(3, 2)])
    rows(settings, "DELETE FROM offset_ledger")
    with pytest.raises(LedgerConflict, match="set back"):
        serve(store, [row(3, 2)])
    assert rows(settings, VIEW) == [(1, "v0", "live"), (2, "v1", "live")]


def test_a_partition_added_while_the_query_runs_gets_its_place_in_the_ledger(settings, store):
    serve(store, [row(1, 0), row(2, 0, stream_partition=4, kafka_partition=4)])
    serve(store, [row(3, 1, stream_partition=4, kafka_partition=4)])
    assert rows(settings, LEDGER) == [(0, 1), (4, 2)]
    assert store.committed_offsets == {0: 1, 4: 2}


def test_duplicates_are_counted_by_their_source_in_a_batch_and_between_batches(store):
    assert applied(store, [row(1, 0), row(1, 0, kafka_offset=1), row(2, 1, kafka_offset=2)]).duplicates == 1
    again = [row(1, 0, kafka_offset=3), row(2, 1, kafka_offset=4), row(3, 2, kafka_offset=5)]
    assert applied(store, again).duplicates == 2
    assert applied(store, [row(1, 3, kafka_offset=6, modified_at=LATER)]).duplicates == 0  # a new version is none


def test_a_served_board_is_pending_no_longer(settings, store):
    pending(settings, board_id=1, offset=0)
    pending(settings, board_id=2, offset=1)
    pending(settings, board_id=3, offset=2)
    pending(settings, board_id=4, offset=9, version_at=LATER)
    pending(settings, board_id=5, offset=4)
    serve(store, [
        row(1, 0),  # its own detail
        row(2, 6, modified_at=LATER),  # a newer version
        tombstone(3, 7, LATER),
        row(4, 3),  # an older version: the newer one goes on waiting
    ])  # fmt: skip
    assert rows(settings, "SELECT board_id FROM pending_record ORDER BY board_id") == [(4,), (5,)]


def test_a_board_that_the_published_day_shows_is_pending_no_longer(settings, store):
    pending(settings, board_id=1, offset=0)
    build(settings, [row(1, 0)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    assert serve(store, [row(1, 0)]) == 0
    assert rows(settings, "SELECT count(*) FROM pending_record") == [(0,)]


def test_a_tombstone_in_a_batch_takes_the_day_of_its_board(settings, store):
    serve(store, [row(1, 0), tombstone(1, 1, LATER), row(2, 2), tombstone(3, 3, LATER)])
    found = rows(settings, "SELECT board_id, day, deleted FROM detail_live ORDER BY board_id")
    assert found == [(1, DAY.date, True), (2, DAY.date, False), (3, None, True)]


@pytest.mark.parametrize("seed", range(3))
def test_any_split_into_batches_gives_the_newest_version_of_each_board(settings, store, seed):
    chance = random.Random(seed)
    sent, newest = [], {}
    for offset in range(400):
        if sent and chance.random() < 0.2:
            made = {**chance.choice(sent), "kafka_offset": offset}  # a duplicate
        else:
            board, at = chance.randrange(60), NOON + dt.timedelta(minutes=chance.randrange(5))
            is_gone = chance.random() < 0.2
            made = tombstone(board, offset, at) if is_gone else row(board, offset, modified_at=at)
        sent.append(made)
        version = (made["modified_at"], made["stream_offset"])
        if made["board_id"] not in newest or version > newest[made["board_id"]][0]:
            newest[made["board_id"]] = version, None if made["deleted"] else made["title"], offset
    duplicates, begin = 0, 0
    while begin < len(sent):
        end = begin + chance.choice((1, 5, 60))
        duplicates += applied(store, sent[begin:end]).duplicates
        begin = end
    expected = [(board, title, at) for board, (_, title, at) in sorted(newest.items()) if title is not None]
    assert rows(settings, "SELECT board_id, title, kafka_offset FROM board_detail ORDER BY board_id") == expected
    assert 0 < duplicates <= len(sent) - len({made["stream_offset"] for made in sent})
    assert rows(settings, LEDGER) == [(0, 400)]


def test_one_batch_of_everything_takes_each_row_its_own_way(settings, store):
    """New boards go straight into the table, the others by the stage: both in one transaction."""
    yesterday = dt.date(2026, 11, 19)
    build(settings, [row(1, 0)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    serve(store, [row(2, 5, day=yesterday)])
    pending(settings, board_id=3, offset=6)
    written = serve(store, [
        row(1, 0, kafka_offset=6),  # the published day shows it
        row(2, 7, day=yesterday, modified_at=LATER),
        row(3, 6, day=yesterday, kafka_offset=8),  # was pending
        row(4, 9, day=yesterday),
        row(5, 10, day=dt.date(2026, 11, 18)),  # a day never seen
        tombstone(1, 11, LATER),
        row(6, 12),  # late for the published day
    ])  # fmt: skip
    assert written == 6
    assert [row[0] for row in rows(settings, VIEW)] == [2, 3, 4, 5, 6]
    assert rows(settings, "SELECT title FROM board_detail WHERE board_id = 2") == [("v7",)]
    assert rows(settings, "SELECT count(*) FROM pending_record") == [(0,)]
    assert rows(settings, "SELECT cause, count FROM dirty_day") == [("late board", 2)]
    assert rows(settings, "SELECT count(*) FROM day_publication") == [(3,)]


def test_publishing_a_day_waits_for_the_batch_that_writes_into_it(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    with ThreadPoolExecutor(1) as publisher:
        with held_up(settings, "offset_ledger", lambda: serve(store, [row(2, 6)]), "EXCLUSIVE") as serving:
            publishing = publisher.submit(publish, settings, DAY, "r")
            wait_until(lambda: is_waiting(settings, "publish"), 20, "the publication waits for the batch")
        serving.result()
        publishing.result()
    assert rows(settings, VIEW) == [(1, "v0", "final"), (2, "v6", "live")]
    assert rows(settings, "SELECT cause FROM dirty_day") == [("late board",)]


def test_a_batch_waits_for_a_publication_under_way_and_then_knows_its_cut(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    verify(settings, DAY, "r")
    with ThreadPoolExecutor(1) as server, ThreadPoolExecutor(1) as publisher:
        with locked(settings, "detail_live"):
            publishing = publisher.submit(publication.publish, settings, DAY, "r")
            wait_until(lambda: is_waiting(settings, "publish"), 20, "the publication has its day")
            serving = server.submit(serve, store, [row(1, 0), row(2, 6)])
            wait_until(lambda: is_waiting(settings, "serve"), 20, "the batch waits for the day")
        publishing.result()
        assert serving.result() == 1
    assert rows(settings, VIEW) == [(1, "v0", "final"), (2, "v6", "live")]
