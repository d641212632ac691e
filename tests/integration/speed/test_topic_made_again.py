"""A topic that was deleted and made again: its offsets are small again, and no published day may hide its records.

`board-detail` has 50 records when the stream is repaired: those were made from the former topic `board`.
"""

import datetime as dt
import io
from contextlib import redirect_stdout

import pytest

from include.contracts.clock import SystemClock
from include.contracts.errors import StaleRun, TopicReplaced
from include.database.offset_ledger import OffsetLedger
from include.integrity.days.publication import redo, undo
from spark_jobs.repair import Repair, run
from spark_jobs.speed.positions import refuse_replaced_table, starting_position
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, opened_store, pending, row, serve, tombstone
from tests.support.topic_log import TopicLog, taken_lease

LATER = NOON + dt.timedelta(minutes=1)
VIEW = "SELECT board_id, title, finality FROM board_detail WHERE day = %s ORDER BY board_id"
DIRTY = "SELECT day, cause, count FROM dirty_day"
FORMER_DETAILS = 50
PUBLISHED = [(1, "v5", "final"), (2, "v6", "final"), (3, "v7", "final")]


@pytest.fixture(scope="module")
def log(kafka):
    return TopicLog(kafka.bootstrap_servers)


@pytest.fixture
def settings(log, postgres, tmp_path):
    made = migrated(log, postgres, "made_again", tmp_path)
    for topic in ("board", "member", "board-detail"):
        log.make(topic)
    log.send("board-detail", 0, FORMER_DETAILS)
    lease = taken_lease(made)
    starting_position(OffsetLedger(made.database), log.offsets, "join", "board", lease)
    lease.release()
    return made


@pytest.fixture
def published(log, settings):
    """A day as *serve* showed it, published up to offset 9 of the topic; 1 has a live row that nothing covered yet."""
    serve_all(log, settings, [row(1, 1, title="served"), row(2, 6), row(3, 7)])
    build_of(settings, log, [row(1, 5, modified_at=LATER), row(2, 6), row(3, 7)], cut=9, run_id="a")
    publish(settings, DAY, "a")
    assert shown(settings) == PUBLISHED
    return settings


def build_of(settings, log, listed, **how):
    topic_ids = {topic: log.offsets.topic_id(topic) for topic in ("board", "member")}
    return build(settings, listed, **how, topic_ids=topic_ids)


def serve_all(log, settings, served):
    store = opened_store(settings, topic_id=log.offsets.topic_id("board-detail"))
    try:
        return serve(store, served)
    finally:
        store.close()


def shown(settings):
    return rows(settings, VIEW, (DAY.date,))


def made_again(log, settings, topic="board"):
    log.make(topic)
    repaired(log, settings)


def repaired(log, settings):
    repair = Repair(settings, log.offsets, OffsetLedger(settings.database), SystemClock())
    with redirect_stdout(io.StringIO()) as printed:
        assert run(repair, ["join"], dry_run=False, force=True) == 0
    return printed.getvalue()


def test_an_update_of_a_published_day_is_seen(log, published):
    made_again(log, published)
    assert shown(published) == PUBLISHED
    after = LATER + dt.timedelta(minutes=1)
    newer = [row(1, 0, title="updated", modified_at=after), tombstone(2, 1, after), row(4, 2, title="new")]
    assert serve_all(log, published, [{**each, "kafka_offset": 100 + n} for n, each in enumerate(newer)]) == 3
    assert shown(published) == [(1, "updated", "live"), (3, "v7", "final"), (4, "new", "live")]


def test_the_published_day_is_dirty(log, published):
    made_again(log, published)
    marks = [(DAY.date, "topic made again", 1)]
    assert rows(published, DIRTY) == marks
    made_again(log, published)  # once more, with nothing built in between
    assert rows(published, DIRTY) == marks


def test_what_the_generation_knows_in_a_newer_version_is_not_put_on_top_of_it(log, published):
    made_again(log, published)
    assert serve_all(log, published, [row(1, 0, title="sent again", kafka_offset=100)]) == 0  # an older version of 1
    assert shown(published) == PUBLISHED


def test_undo_and_redo_lead_to_what_was_shown(log, published):
    made_again(log, published)
    undo(published, DAY, "a test")
    assert shown(published) == [(1, "served", "live"), (2, "v6", "live"), (3, "v7", "live")]
    redo(published, DAY, "a test")
    assert shown(published) == PUBLISHED
    serve_all(log, published, [row(3, 0, title="updated", modified_at=LATER, kafka_offset=100)])
    assert shown(published)[2] == (3, "updated", "live")


MADE_AGAIN = "topic board or member was made again since this build began"


def test_a_build_from_the_new_topic_is_published_and_one_from_the_old_is_not(log, published):
    build_of(published, log, [row(1, 8), row(2, 6), row(3, 7)], cut=9, run_id="old")
    made_again(log, published)
    with pytest.raises(StaleRun, match=MADE_AGAIN):
        publish(published, DAY, "old")
    later = [row(n, n, title="sent again", modified_at=LATER) for n in (1, 2, 3)]
    build_of(published, log, later, cut=4, run_id="new")
    publish(published, DAY, "new")
    assert {(title, finality) for _, title, finality in shown(published)} == {("sent again", "final")}
    assert serve_all(log, published, [row(3, 3, title="covered", modified_at=LATER, kafka_offset=100)]) == 0
    assert rows(published, "SELECT stream_ends FROM day_publication") == [([4],)]


def test_what_was_built_from_the_topic_that_is_there_keeps_its_cut(log, published):
    log.make("board")  # the night came before somebody repaired the stream
    build_of(published, log, [row(n, n, modified_at=LATER) for n in (1, 2, 3)], cut=4, run_id="b")
    before = rows(published, "SELECT cut FROM generation WHERE run_id = 'b'")
    repaired(log, published)
    assert rows(published, "SELECT cut FROM generation WHERE run_id = 'b'") == before


def built_from_the_new_topic(log, settings, **how):
    """Up to offset 40: 1, 2 and 3 as they were, each sent again."""
    again = [row(1, 11, title="v5", modified_at=LATER), row(2, 12, title="v6"), row(3, 13, title="v7")]
    build_of(settings, log, again, cut=40, run_id="new", **how)
    publish(settings, DAY, "new")


def test_a_row_of_the_former_topic_is_not_covered_by_a_cut_of_the_new_one(log, published):
    serve_all(log, published, [row(2, 12, title="after the cut", modified_at=LATER), row(4, 13, title="new")])
    made_again(log, published)
    built_from_the_new_topic(log, published)
    seen = [(1, "v5", "final"), (2, "after the cut", "live"), (3, "v7", "final"), (4, "new", "live")]
    assert shown(published) == seen
    undo(published, DAY, "a test")
    assert shown(published) == [*PUBLISHED[:1], *seen[1:2], *PUBLISHED[2:], *seen[3:]]
    redo(published, DAY, "a test")
    assert shown(published) == seen


def test_a_detail_of_the_former_topic_that_is_served_late_is_seen(log, published):
    made_again(log, published)
    built_from_the_new_topic(log, published)
    late = [row(2, 12, title="served late", modified_at=LATER), row(3, 14, title="of the same version"),
            row(4, 13, title="new")]  # fmt: skip
    assert serve_all(log, published, late) == 2
    assert shown(published) == [
        (1, "v5", "final"), (2, "served late", "live"), (3, "v7", "final"), (4, "new", "live")]  # fmt: skip
    # the record after them is of the new topic, and covered
    assert serve_all(log, published, [row(5, 15, title="covered", kafka_offset=FORMER_DETAILS)]) == 0


def test_what_was_sent_again_is_newer_than_what_stands_there(log, published):
    serve_all(log, published, [row(4, 30, title="new")])
    made_again(log, published)
    serve_all(log, published, [row(4, 3, title="new", kafka_offset=100)])
    coordinates = "SELECT stream_partition, stream_offset FROM board_detail WHERE board_id = 4"
    assert rows(published, coordinates) == [(0, 3)]


def test_a_board_of_the_former_topic_that_waited_is_seen_when_its_member_comes(log, published):
    pending(published, 4, 5)
    made_again(log, published)
    [(partition, offset)] = rows(published, 'SELECT partition, "offset" FROM pending_record')
    built_from_the_new_topic(log, published)
    came = row(4, offset, title="waited", stream_partition=partition, kafka_offset=100)
    assert serve_all(log, published, [came]) == 1
    assert shown(published)[3:] == [(4, "waited", "live")]
    assert rows(published, "SELECT 1 FROM pending_record") == []


def test_a_build_from_a_topic_that_the_stream_has_not_gone_to_is_not_published(log, published):
    log.make("board")
    build_of(published, log, [row(n, n, modified_at=LATER) for n in (1, 2, 3)], cut=40, run_id="early")
    with pytest.raises(StaleRun, match=MADE_AGAIN):
        publish(published, DAY, "early")


@pytest.fixture
def waiting(log, settings):
    """A published day with a board that waits for its member; the cut of topic `member` is at 100."""
    pending(settings, 4, 8)
    build_of(settings, log, [row(2, 6), row(3, 7)], cut=9, run_id="a", pending=[(4, 8)], members=100)
    publish(settings, DAY, "a")
    return settings


def test_a_member_that_comes_on_a_topic_made_again_shows_its_boards(log, waiting):
    made_again(log, waiting, "member")
    assert serve_all(log, waiting, [row(4, 8, title="its member came", table_offset=2, kafka_offset=100)]) == 1
    assert shown(waiting) == [(2, "v6", "final"), (3, "v7", "final"), (4, "its member came", "live")]
    assert ("topic made again", 1) in [each[1:] for each in rows(waiting, DIRTY)]


def test_the_stream_refuses_another_topic_of_members_until_it_is_taken_out_of_the_cuts(log, waiting):
    refuse_replaced_table(waiting.database, log.offsets, "member")
    log.make("member")
    created = "topic member was created again"
    with pytest.raises(TopicReplaced, match=rf"{created}.*1 days.*pipeline stream repair.*--dry-run"):
        refuse_replaced_table(waiting.database, log.offsets, "member")
    assert created in repaired(log, waiting)
    refuse_replaced_table(waiting.database, log.offsets, "member")
    assert repaired(log, waiting) == "Nothing to repair: the ledger matches its topics.\n"


def test_a_build_from_the_former_members_is_not_published(log, waiting):
    build_of(waiting, log, [row(2, 6), row(3, 7)], cut=9, run_id="old", pending=[(4, 8)], members=101)
    made_again(log, waiting, "member")
    with pytest.raises(StaleRun, match=MADE_AGAIN):
        publish(waiting, DAY, "old")
