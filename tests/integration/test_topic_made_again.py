"""A topic `board` that was deleted and made again: its offsets are small again, and no published day may hide them."""

import datetime as dt

import pytest

from include.adapters.offset_ledger import OffsetLedger
from include.clock import SystemClock
from include.errors import StaleRun
from include.integrity.publication import redo, undo
from spark_jobs.repair import Repair, run
from spark_jobs.speed.positions import starting_position
from tests.servers import kafka_server
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, opened_store, row, serve, tombstone
from tests.support.topic_log import TopicLog, taken_lease

LATER = NOON + dt.timedelta(minutes=1)
VIEW = "SELECT board_id, title, finality FROM board_detail WHERE day = %s ORDER BY board_id"
DIRTY = "SELECT day, cause, count FROM dirty_day"
PUBLISHED = [(1, "v5", "final"), (2, "v6", "final"), (3, "v7", "final")]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with kafka_server(tmp_path_factory.mktemp("made-again")) as server:
        yield TopicLog(server.bootstrap_servers)


@pytest.fixture
def settings(log, postgres, tmp_path):
    made = migrated(log, postgres, "made_again", tmp_path)
    log.make("board")
    lease = taken_lease(made)
    starting_position(OffsetLedger(made.database), log.offsets, "join", "board", lease)
    lease.release()
    return made


@pytest.fixture
def published(log, settings):
    """A day as *serve* showed it, published up to offset 9 of the topic; 1 has a live row that nothing covered yet."""
    serve_all(settings, [row(1, 1, title="served"), row(2, 6), row(3, 7)])
    build_of(settings, log, [row(1, 5, modified_at=LATER), row(2, 6), row(3, 7)], cut=9, run_id="a")
    publish(settings, DAY, "a")
    assert shown(settings) == PUBLISHED
    return settings


def build_of(settings, log, listed, **how):
    return build(settings, listed, **how, topic_ids={"board": log.offsets.topic_id("board")})


def serve_all(settings, served):
    store = opened_store(settings)
    try:
        return serve(store, served)
    finally:
        store.close()


def shown(settings):
    return rows(settings, VIEW, (DAY.date,))


def made_again(log, settings):
    log.make("board")
    repair = Repair(settings, log.offsets, OffsetLedger(settings.database), SystemClock())
    assert run(repair, ["join"], dry_run=False, force=True, show=lambda _: None) == 0


def test_an_update_of_a_published_day_is_seen(log, published):
    made_again(log, published)
    assert shown(published) == PUBLISHED
    after = LATER + dt.timedelta(minutes=1)
    newer = [row(1, 0, title="updated", modified_at=after), tombstone(2, 1, after), row(4, 2, title="new")]
    assert serve_all(published, [{**each, "kafka_offset": 100 + n} for n, each in enumerate(newer)]) == 3
    assert shown(published) == [(1, "updated", "live"), (3, "v7", "final"), (4, "new", "live")]


def test_the_published_day_is_dirty(log, published):
    made_again(log, published)
    marks = [(DAY.date, "topic made again", 1)]
    assert rows(published, DIRTY) == marks
    made_again(log, published)  # once more, with nothing built in between
    assert rows(published, DIRTY) == marks


def test_what_the_generation_knows_in_a_newer_version_is_not_put_on_top_of_it(log, published):
    made_again(log, published)
    assert serve_all(published, [row(1, 0, title="sent again", kafka_offset=100)]) == 0  # an older version of 1
    assert shown(published) == PUBLISHED


def test_undo_and_redo_lead_to_what_was_shown(log, published):
    made_again(log, published)
    undo(published, DAY, "a test")
    assert shown(published) == [(1, "served", "live"), (2, "v6", "live"), (3, "v7", "live")]
    redo(published, DAY, "a test")
    assert shown(published) == PUBLISHED
    serve_all(published, [row(3, 0, title="updated", modified_at=LATER, kafka_offset=100)])
    assert shown(published)[2] == (3, "updated", "live")


def test_a_build_from_the_new_topic_is_published_and_one_from_the_old_is_not(log, published):
    build_of(published, log, [row(1, 8), row(2, 6), row(3, 7)], cut=9, run_id="old")
    made_again(log, published)
    with pytest.raises(StaleRun, match=r"board was made again"):
        publish(published, DAY, "old")
    later = [row(n, n, title="sent again", modified_at=LATER) for n in (1, 2, 3)]
    build_of(published, log, later, cut=4, run_id="new")
    publish(published, DAY, "new")
    assert {(title, finality) for _, title, finality in shown(published)} == {("sent again", "final")}
    assert serve_all(published, [row(3, 3, title="covered", modified_at=LATER, kafka_offset=100)]) == 0
    assert rows(published, "SELECT board_ends FROM day_publication") == [([4],)]


def test_what_was_built_from_the_topic_that_is_there_keeps_its_cut(log, published):
    log.make("board")  # the night came before somebody repaired the stream
    build_of(published, log, [row(n, n, modified_at=LATER) for n in (1, 2, 3)], cut=4, run_id="b")
    before = rows(published, "SELECT cut FROM generation WHERE run_id = 'b'")
    repair = Repair(published, log.offsets, OffsetLedger(published.database), SystemClock())
    assert run(repair, ["join"], dry_run=False, force=True, show=lambda _: None) == 0
    assert rows(published, "SELECT cut FROM generation WHERE run_id = 'b'") == before
