"""The DAG that points a day back: its form, and what its one task is told."""

import pytest

from tests.dags.rendering import submit

FORM = {"day": "2026-11-20", "reason": "wrong authors"}


@pytest.fixture
def dag(dag_bag):
    return dag_bag.dags["undo_day"]


def test_undoes_the_last_publication_unless_told_otherwise(dag):
    form = submit(dag, FORM)

    assert (form["action"], form["to"]) == ("undo", None)


def test_is_a_dry_run_unless_told_otherwise(dag):
    assert submit(dag, FORM)["dry_run"] is True


def test_takes_a_full_form(dag):
    assert submit(dag, FORM | {"to": 7})["to"] == 7
    assert submit(dag, FORM | {"to": 0})["to"] == 0
    assert submit(dag, FORM | {"action": "redo"})["action"] == "redo"


@pytest.mark.parametrize(
    ("field", "value"), [("day", "20.11.2026"), ("action", "drop"), ("to", -1), ("to", "seven"), ("reason", "ab")]
)
def test_refuses_a_wrong_value(dag, field, value):
    with pytest.raises(ValueError, match=field):
        submit(dag, FORM | {field: value})


@pytest.mark.parametrize("field", ["day", "reason"])
def test_refuses_a_form_without_a_required_value(dag, field):
    with pytest.raises(ValueError, match=field):
        submit(dag, {name: value for name, value in FORM.items() if name != field})


def test_its_task_names_the_run_so_that_trying_again_changes_nothing(dag):
    _, day, to, reason, made_by, action, _ = dag.get_task("undo").op_args

    assert (day, reason, action) == ("{{ params.day }}", "{{ params.reason }}", "{{ params.action }}")
    assert to == "{{ '' if params.to is none else params.to | int }}"
    assert "{{ run_id }}" in made_by
