"""The DAG for people: its form, and what a dry run leaves out."""

import pytest

FORM = {"from": "2026-11-19", "to": "2026-11-20", "reason": "late members"}


@pytest.fixture
def dag(dag_bag):
    return dag_bag.dags["reprocess_days"]


def submit(dag, values):
    """The values a run gets, as Airflow's API checks and completes them: on its own copy of the DAG."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.from_dict(DagSerialization.to_dict(dag)).params.deep_merge(values).validate()


def test_is_a_dry_run_unless_told_otherwise(dag):
    assert submit(dag, FORM)["dry_run"] is True


def test_takes_a_full_form(dag):
    assert submit(dag, FORM | {"dry_run": False})["dry_run"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("from", "20/11/2026"),
        ("from", "yesterday"),
        ("to", "2026-11-31"),
        ("dry_run", "no"),
        ("source", "topics"),
        ("reason", "ab"),
        ("reason", ""),
    ],
)
def test_refuses_a_wrong_value(dag, field, value):
    with pytest.raises(ValueError, match=field):
        submit(dag, FORM | {field: value})


@pytest.mark.parametrize("field", ["from", "to", "reason"])
def test_refuses_a_form_without_a_required_value(dag, field):
    with pytest.raises(ValueError, match=field):
        submit(dag, {name: value for name, value in FORM.items() if name != field})


def test_refuses_days_before_it_drains_and_waits(dag):
    assert "replay_fallback" in dag.get_task("days").downstream_task_ids
    assert dag.get_task("replay_fallback").downstream_task_ids == {"wait_until_caught_up"}


def test_can_be_started_as_soon_as_airflow_has_read_it(dag):
    assert dag.is_paused_upon_creation is False


def test_publishes_by_hand_also_what_a_person_holds(dag):
    *_, is_by_hand, _ = dag.get_task("rebuild_day.publish").op_args

    assert is_by_hand is True


def test_its_last_task_returns_the_result_also_of_a_run_of_which_a_day_failed_and_does_not_make_it_green(dag):
    summary = dag.get_task("summary")

    assert summary.downstream_task_ids == set()
    assert {"days", "rebuild_day.difference", "rebuild_day.certify", "rebuild_day.cover"} == summary.upstream_task_ids
    assert (summary.is_teardown, summary.on_failure_fail_dagrun) == (True, False)
