"""The nightly DAG: which day a run is for, and in which order it works."""

import datetime as dt
from itertools import pairwise

import pytest


@pytest.fixture
def timetable(dag_bag):
    from airflow.serialization.serialized_objects import DagSerialization

    dag = dag_bag.dags["nightly_rebuild"]
    return DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable


def next_run(timetable, earliest):
    from airflow.timetables.base import TimeRestriction

    restriction = TimeRestriction(earliest=earliest, latest=None, catchup=True)
    return timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=restriction)


def test_run_at_two_in_seoul_is_for_the_day_before(timetable):
    import pendulum

    run = next_run(timetable, pendulum.datetime(2026, 11, 20, 17, 0, tz="UTC"))

    assert run.run_after == dt.datetime(2026, 11, 20, 17, 0, tzinfo=dt.UTC)  # 02:00 on the 21st in Seoul
    assert run.partition_key == "2026-11-20"


def test_run_after_new_year_is_for_the_last_day_of_december(timetable):
    import pendulum

    assert next_run(timetable, pendulum.datetime(2026, 12, 31, 17, 0, tz="UTC")).partition_key == "2026-12-31"


def test_backfill_of_one_day_runs_that_day_alone(timetable):
    infos = timetable.iter_partition_dagrun_infos(
        earliest=dt.datetime(2026, 11, 20, tzinfo=dt.UTC), latest=dt.datetime(2026, 11, 20, 23, 59, 59, tzinfo=dt.UTC)
    )

    assert [info.partition_key for info in infos] == ["2026-11-20"]


def test_a_run_by_hand_is_refused_since_it_has_no_day(dag_bag):
    assert sorted(kind.value for kind in dag_bag.dags["nightly_rebuild"].allowed_run_types) == ["backfill", "scheduled"]


def test_replays_settles_rebuilds_verifies_publishes_and_certifies_in_that_order(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]
    order = ["replay_fallback", "wait_until_settled", "rebuild", "verify", "publish", "certify"]

    assert sorted(dag.task_ids) == sorted(order)
    for before, after in pairwise(order):
        assert dag.get_task(before).downstream_task_ids == {after}


def test_rebuild_gets_the_runs_day_and_id(dag_bag):
    rebuild = dag_bag.dags["nightly_rebuild"].get_task("rebuild")

    assert rebuild.application_args == ["--day", "{{ dag_run.partition_key }}", "--run-id", "{{ run_id }}"]
