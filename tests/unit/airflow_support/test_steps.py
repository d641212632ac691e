"""Every step that a DAG's task calls works with the settings of the pipeline that the task names."""

import datetime as dt
import inspect
from types import SimpleNamespace

import pytest

from include.airflow_support import steps, tasks
from include.airflow_support.defaults import FormError
from include.contracts.day import DayFormatError
from include.integrity.days import gateways, publication
from include.integrity.pages.day_page import GenerationRow, UndoPreview
from include.runtime.settings import Settings
from tests.support.messages import WRONG_YEAR

STEPS = [
    step
    for name, step in inspect.getmembers(steps, inspect.isfunction)
    if step.__module__ == steps.__name__ and not name.startswith("_")
]
TASKS = [
    each.function
    for each in (
        tasks.replay_fallback, tasks.wait_until_caught_up, tasks.collect_orphans, tasks.verify, tasks.difference,
        tasks.publish, tasks.certify, tasks.cover, tasks.uncertified_days, tasks.certify_earlier,
    )
]  # fmt: skip
GIVEN = {"timeout_s": "0", "approval": {"approved_by": None, "seen": None}, "action": "undo", "to": ""}


class Read(Exception):
    """The settings of the pipeline were read."""


@pytest.mark.parametrize("step", [*STEPS, *TASKS], ids=lambda step: step.__name__)
def test_a_step_reads_the_settings_of_its_pipeline(step, monkeypatch):
    def read(_, pipeline):
        raise Read(pipeline)

    monkeypatch.setattr(Settings, "from_environment", read)
    others = {name: "scheduled" for name in inspect.signature(step).parameters if name != "pipeline"}

    with pytest.raises(Read, match=r"^order_detail$"):
        step(**{**others, **{name: GIVEN[name] for name in others if name in GIVEN}, "pipeline": "order_detail"})


def refused(call):
    with pytest.raises(FormError) as raised:
        call()
    return str(raised.value)


def test_a_redo_with_a_generation_is_refused():
    assert refused(
        lambda: steps.undo("board_detail", "2026-11-20", "5", "why", "me", "redo")
    ).startswith("to='5': a redo takes no generation")  # fmt: skip


def test_an_action_that_is_none_is_refused():
    assert refused(
        lambda: steps.undo("board_detail", "2026-11-20", "", "why", "me", "publish")
    ) == "action='publish': give undo or redo"  # fmt: skip


def test_a_reconciliation_since_a_day_that_has_not_begun_is_refused_before_the_stores_are_drained(monkeypatch):
    monkeypatch.setattr(gateways, "replay_fallback", lambda _: pytest.fail("drained"))
    monkeypatch.setattr(steps, "task_settings", lambda _: SimpleNamespace(timezone="Asia/Seoul"))
    assert refused(
        lambda: steps.reconcile("board_detail", "manual", "2200-01-01", True, "why")
    ).startswith("since='2200-01-01': that day has not begun")  # fmt: skip
    with pytest.raises(DayFormatError, match=WRONG_YEAR):
        steps.reconcile("board_detail", "manual", "0001-01-01", True, "why")


def test_the_times_of_an_undo_are_texts(monkeypatch):
    at = dt.datetime(2026, 11, 20, 19, tzinfo=dt.UTC)
    built = GenerationRow(7, "r", None, "published", 3, 0, 0, 0, "h", at, at, True)
    preview = UndoPreview("undo", built, None, {})
    monkeypatch.setattr(steps, "day_settings", lambda *given: given)
    monkeypatch.setattr(publication, "history", lambda *_: [])
    monkeypatch.setattr(steps, "preview", lambda *_: preview)

    found = steps.undo("board_detail", "2026-11-20", "", "why", "me", "undo", True)

    assert found["before"]["built_at"] == "2026-11-20 19:00:00+00:00"
    assert found["after"] is None
