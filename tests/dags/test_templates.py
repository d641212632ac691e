"""Every template of every DAG, rendered as a worker does it: what the steps and the Spark jobs really get."""

import re

import pytest

from include.airflow_support.timetable import DayTimetable
from include.integrity.jobs import SITE_BASES
from tests.dags.rendering import DAY, RUN_ID, rendered, texts

REPROCESS = {
    "from": DAY,
    "to": DAY,
    "reason": "late members",
    "accept_vanishing": False,
    "source": "topics and archive",
}
UNDO = {"day": DAY, "action": "undo", "to": None, "dry_run": False, "reason": "wrong authors"}
RECONCILE = {"since": DAY, "dry_run": False, "reason": "a gateway died"}
FORGET = {"key": "7", "key_again": "7", "dry_run": False, "reason": "request 12"}
RUNS = [
    ("nightly_rebuild", "scheduled", None),
    ("nightly_rebuild", "backfill", None),
    ("rebuild_day", "asset_triggered", None),
    ("reprocess_days", "manual", REPROCESS),
    ("undo_day", "manual", UNDO),
    ("undo_day", "manual", UNDO | {"to": 0, "action": "redo"}),
    ("replay_fallback", "manual", None),
    ("reconcile_sources", "manual", RECONCILE),
    ("reconcile_sources", "scheduled", None),
    ("forget_member", "manual", FORGET),
    ("watch_pipeline", "manual", None),
    ("audit", "manual", None),
]
# an expression that was not rendered, a value that has no text of its own
UNFIT = re.compile(r"\{\{|\}\}|\{%|Undefined|\bNone\b|<[\w.]+ object|\b[A-Z]\w+\.[A-Z_]+\b")


@pytest.mark.parametrize("suffix", ["", "_order_detail"])
@pytest.mark.parametrize(("dag_id", "run_type", "conf"), RUNS)
def test_no_template_of_any_task_renders_to_something_that_is_no_text(dag_bag, dag_id, run_type, conf, suffix):
    if suffix and dag_id in SITE_BASES:
        assert dag_id + suffix not in dag_bag.dags
        return
    for task in dag_bag.dags[dag_id + suffix].tasks:
        fields = {name: getattr(rendered(task, run_type, conf), name) for name in task.template_fields}

        unfit = {name: text for name, value in fields.items() for text in texts(value) if UNFIT.search(text)}
        assert unfit == {}, task.task_id


def _kinds_of(dag):
    """The kinds of runs that a timetable allows: that of the nights refuses runs by hand."""
    return ["scheduled", "backfill"] if isinstance(dag.timetable, DayTimetable) else ["manual"]


def test_every_dag_is_rendered_in_every_kind_of_run_that_it_allows(dag_bag):
    allowed = {
        (dag_id.removesuffix("_order_detail"), str(getattr(kind, "value", kind)))
        for dag_id, dag in dag_bag.dags.items()
        for kind in dag.allowed_run_types or _kinds_of(dag)
    }

    assert {(dag_id, run_type) for dag_id, run_type, _ in RUNS} == allowed


@pytest.mark.parametrize("run_type", ["scheduled", "backfill"])
def test_the_nights_days_are_chosen_by_its_key_and_its_kind(dag_bag, run_type):
    task = rendered(dag_bag.dags["nightly_rebuild"].get_task("days"), run_type)

    assert task.op_args == ("board_detail", DAY, run_type)


@pytest.mark.parametrize(
    ("dag_id", "task_id", "run_type", "conf", "reason", "source"),
    [
        ("rebuild_day", "rebuild", "asset_triggered", None, "nightly_rebuild", "auto"),
        ("reprocess_days", "rebuild_day.rebuild", "manual", REPROCESS, "late members", "auto"),
        (
            "reprocess_days", "rebuild_day.rebuild", "manual", REPROCESS | {"source": "archive"}, "late members",
            "archive",
        ),
    ],
)  # fmt: skip
def test_a_rebuild_gets_its_day_the_runs_id_a_reason_and_a_source(
    dag_bag, dag_id, task_id, run_type, conf, reason, source
):
    task = rendered(dag_bag.dags[dag_id].get_task(task_id), run_type, conf)

    assert task.application_args == ["--day", DAY, "--run-id", RUN_ID, f"--reason={reason}", "--source", source]


def test_a_publication_names_who_made_it(dag_bag):
    by_night = rendered(dag_bag.dags["rebuild_day"].get_task("publish"), "asset_triggered")
    by_hand = rendered(dag_bag.dags["reprocess_days"].get_task("rebuild_day.publish"), "manual", REPROCESS)

    assert by_night.op_args[1:-1] == (
        DAY, RUN_ID, f"airflow, rebuild_day {RUN_ID}", "nightly_rebuild", False
    )  # fmt: skip
    assert by_hand.op_args[1:-1] == (DAY, RUN_ID, f"operator, reprocess_days {RUN_ID}", "late members", True)


@pytest.mark.parametrize(
    ("request_", "made_by"),
    [({"made_by": "mina"}, "mina"), ({"made_by": "mina", "from_rest_api": True}, "airflow"), ({}, "airflow")],
)
def test_an_event_that_was_sent_to_the_api_names_nobody(dag_bag, request_, made_by):
    publish = rendered(dag_bag.dags["rebuild_day"].get_task("publish"), "asset_triggered", request=request_)

    assert publish.op_args[3] == f"{made_by}, rebuild_day {RUN_ID}"


@pytest.mark.parametrize(("to", "text"), [(None, ""), (0, "0"), (7, "7")])
def test_an_undo_goes_to_the_generation_of_the_form(dag_bag, to, text):
    task = rendered(dag_bag.dags["undo_day"].get_task("undo"), "manual", UNDO | {"to": to})

    assert task.op_args[1:] == (DAY, text, "wrong authors", f"operator, undo_day {RUN_ID}", "undo", "False")
