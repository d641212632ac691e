"""Publish accepts only a verified build; rows served in between are classified too."""

import datetime as dt
import itertools

import pytest

from include.airflow_support import tasks
from include.contracts.errors import OK, REFUSED, PipelineError
from include.integrity.days import comparison
from include.integrity.days.comparison import RowsWouldVanish, verify
from include.integrity.days.publication import publish, redo, undo
from pipeline.__main__ import main
from tests.support.pipeline import environment, migrated, rows
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone

LATER = NOON + dt.timedelta(minutes=1)
COMMAND = r"pipeline days verify"
CORRECTIONS = """
SELECT board_id, class, shown ->> 'title', rebuilt ->> 'title' FROM detail_correction
 WHERE generation_id = %s ORDER BY board_id
"""
UNLISTED = "SELECT unlisted_corrections FROM generation WHERE id = %s"
VIEW = "SELECT board_id, title, finality FROM board_detail WHERE day = %s ORDER BY board_id"
_numbers = itertools.count()


@pytest.fixture
def settings(postgres, tmp_path, monkeypatch):
    name = f"verified{next(_numbers) % 2}"
    for variable, value in environment(None, postgres, name, tmp_path).items():
        monkeypatch.setenv(variable, value)
    return migrated(None, postgres, name, tmp_path)


@pytest.fixture
def store(settings):
    opened = opened_store(settings)
    yield opened
    opened.close()


def corrections(settings, generation):
    return rows(settings, CORRECTIONS, (generation,))


def shown(settings):
    return rows(settings, VIEW, (DAY.date,))


def test_the_command_refuses_a_build_that_verify_has_not_seen(settings, caplog):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    command = ["days", "publish", "--day", str(DAY), "--run-id", "r"]
    assert main(command) == REFUSED
    assert "pipeline days verify" in caplog.text
    assert shown(settings) == []
    assert main(["days", "verify", *command[2:]]) == OK
    assert main(command) == OK
    assert shown(settings) == [(1, "v0", "final")]


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_the_task_refuses_a_build_that_verify_has_not_seen(settings, is_by_hand):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    approval = {"approved_by": None, "seen": None}
    task = ("board_detail", str(DAY), "r", "a test", "a test", is_by_hand, approval)
    with pytest.raises(PipelineError, match=COMMAND):
        tasks.publish.function(*task)
    assert shown(settings) == []
    tasks.verify.function("board_detail", str(DAY), "r")
    tasks.publish.function(*task)
    assert shown(settings) == [(1, "v0", "final")]


def test_a_build_with_the_content_that_is_shown_is_verified_too(settings):
    first = build(settings, [row(1, 0)], cut=5, run_id="a")
    verify(settings, DAY, "a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0)], cut=9, run_id="b")
    with pytest.raises(PipelineError, match=COMMAND):
        publish(settings, DAY, "b")
    verify(settings, DAY, "b")
    assert publish(settings, DAY, "b").generation_id == first


def test_a_build_that_was_compared_with_something_else_is_compared_again(settings, store):
    serve(store, [row(1, 0, title="served")])
    build(settings, [row(1, 0, title="a")], cut=5, run_id="a")
    verify(settings, DAY, "a")
    publish(settings, DAY, "a")
    generation = build(settings, [row(1, 0, title="b")], cut=5, run_id="b")
    undo(settings, DAY, "a test")
    verify(settings, DAY, "b")
    redo(settings, DAY, "a test")
    with pytest.raises(PipelineError, match=COMMAND):
        publish(settings, DAY, "b")
    verify(settings, DAY, "b")
    publish(settings, DAY, "b")
    assert corrections(settings, generation) == [(1, "unexplained", "a", "b")]


def test_a_build_is_compared_again_when_the_output_topic_was_made_again(settings, store):
    serve(store, [row(1, 0)])
    build(settings, [row(1, 0)], cut=5, run_id="r")
    verify(settings, DAY, "r")
    rows(settings, "UPDATE offset_ledger SET topic_id = 'topic-2', next_offset = 0")
    with pytest.raises(PipelineError, match=rf"board-detail.*{COMMAND}"):
        publish(settings, DAY, "r")
    verify(settings, DAY, "r")
    publish(settings, DAY, "r")


def test_edits_served_between_verify_and_publish_are_classified(settings, store):
    serve(store, [row(1, 0), row(2, 1)])
    built = [row(1, 0), row(2, 2, modified_at=LATER), row(3, 3), row(4, 4)]
    generation = build(settings, built, cut=9, run_id="r")
    verify(settings, DAY, "r")
    assert corrections(settings, generation) == [
        (2, "missing", "v1", "v2"), (3, "missing", None, "v3"), (4, "missing", None, "v4")]  # fmt: skip
    # the edit of 1 lies below the cut, and raw does not have it; that of 4 comes after the cut, and stays on top
    serve(store, [row(1, 5, title="edited", modified_at=LATER), row(2, 2, modified_at=LATER), row(4, 12)])
    before = shown(settings)
    publish(settings, DAY, "r")
    assert corrections(settings, generation) == [(1, "unexplained", "edited", "v0"), (3, "missing", None, "v3")]
    assert before == [(1, "edited", "live"), (2, "v2", "live"), (4, "v12", "live")]
    assert shown(settings) == [(1, "v0", "final"), (2, "v2", "final"), (3, "v3", "final"), (4, "v12", "live")]


def test_a_row_that_began_to_be_seen_after_verify_does_not_vanish_in_silence(settings, store):
    generation = build(settings, [row(1, 0)], cut=9, run_id="r")
    verify(settings, DAY, "r")
    serve(store, [row(2, 3)])
    with pytest.raises(RowsWouldVanish, match=r"keys=\[2\]"):
        publish(settings, DAY, "r")
    assert shown(settings) == [(2, "v3", "live")]
    publish(settings, DAY, "r", reason="a test", accept_vanishing=True)
    assert corrections(settings, generation) == [(1, "missing", None, "v0"), (2, "unexplained", "v3", None)]


def test_a_deletion_that_came_before_its_board_was_shown_is_known(settings, store):
    generation = build(settings, [row(1, 0), row(2, 1)], cut=9, run_id="r")
    verify(settings, DAY, "r")
    serve(store, [tombstone(1, 12, LATER)])  # no row of the view says which day it is of
    publish(settings, DAY, "r")
    assert shown(settings) == [(2, "v1", "final")]
    assert corrections(settings, generation) == [(2, "missing", None, "v1")]


@pytest.mark.parametrize("is_built", [True, False])
def test_a_board_that_leaves_the_day_after_verify_is_known(settings, store, is_built):
    serve(store, [row(1, 0)])
    generation = build(settings, [row(1, 0)] if is_built else [], cut=9, run_id="r")
    if not is_built:
        exclude(settings, generation, "rejected", 1)
    verify(settings, DAY, "r")
    assert [board for board, *_ in corrections(settings, generation)] == ([] if is_built else [1])
    serve(store, [row(1, 12, day=DAY.before(1).date, modified_at=LATER)])
    before = shown(settings)
    publish(settings, DAY, "r")
    is_other = before != shown(settings)
    assert bool(corrections(settings, generation)) == is_other


def test_differences_that_are_counted_only_are_counted_with_what_was_served_since(settings, store, monkeypatch):
    monkeypatch.setattr(comparison, "LISTED_ROWS", 3)
    generation = build(settings, [row(number, number) for number in range(1, 6)], cut=9, run_id="r")
    assert verify(settings, DAY, "r").corrections == {"missing": 5}
    serve(store, [row(1, 1), row(2, 6, title="edited", modified_at=LATER), row(3, 12, modified_at=LATER)])
    publish(settings, DAY, "r")
    assert rows(settings, UNLISTED, (generation,)) == [({"missing": 2},)]
    assert corrections(settings, generation) == [(2, "unexplained", "edited", "v2")]
    assert verify(settings, DAY, "r").corrections == {"missing": 2, "unexplained": 1}
