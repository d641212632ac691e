"""The nightly DAG: which day a run is for, and in which order it works."""

import datetime as dt
import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from include.process_tree import is_running, kill
from tests.dags.rendering import DAY, rendered
from tests.servers import wait_until

FORM = {"from": DAY, "to": DAY, "reason": "a test"}


@pytest.fixture
def timetable(dag_bag):
    return serialised(dag_bag.dags["nightly_rebuild"]).timetable


def serialised(dag):
    """The DAG as the scheduler has it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.from_dict(DagSerialization.to_dict(dag))


def next_run(timetable, earliest):
    from airflow.timetables.base import TimeRestriction

    restriction = TimeRestriction(earliest=earliest, latest=None, catchup=True)
    return timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=restriction)


def test_run_at_four_in_seoul_is_for_the_day_before(timetable):
    import pendulum

    run = next_run(timetable, pendulum.datetime(2026, 11, 20, 19, 0, tz="UTC"))

    assert run.run_after == dt.datetime(2026, 11, 20, 19, 0, tzinfo=dt.UTC)  # 04:00 on the 21st in Seoul
    assert run.partition_key == "2026-11-20"


def test_the_night_of_another_pipeline_is_in_its_own_time_zone(dag_bag):
    import pendulum

    timetable = serialised(dag_bag.dags["nightly_rebuild_order_detail"]).timetable
    run = next_run(timetable, pendulum.datetime(2026, 11, 20, 19, 0, tz="UTC"))

    assert run.run_after == dt.datetime(2026, 11, 21, 9, 0, tzinfo=dt.UTC)  # 04:00 in New York
    assert run.partition_key == "2026-11-20"


def test_run_after_new_year_is_for_the_last_day_of_december(timetable):
    import pendulum

    assert next_run(timetable, pendulum.datetime(2026, 12, 31, 19, 0, tz="UTC")).partition_key == "2026-12-31"


def test_backfill_of_one_day_runs_that_day_alone(timetable):
    infos = timetable.iter_partition_dagrun_infos(
        earliest=dt.datetime(2026, 11, 20, tzinfo=dt.UTC), latest=dt.datetime(2026, 11, 20, 23, 59, 59, tzinfo=dt.UTC)
    )

    assert [info.partition_key for info in infos] == ["2026-11-20"]


@pytest.mark.parametrize("key", [None, "", "2026-11-20"])
def test_a_run_by_hand_is_refused_since_it_has_no_day(timetable, key):
    with pytest.raises(ValueError, match="a run by hand is refused"):
        timetable.resolve_partition_date(key)


def test_the_button_that_opens_the_form_of_a_backfill_is_not_locked(dag_bag):
    assert dag_bag.dags["nightly_rebuild"].allowed_run_types is None


def test_replays_and_catches_up_before_it_archives_and_chooses_its_days(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]

    assert dag.get_task("replay_fallback").downstream_task_ids == {"wait_until_caught_up"}
    assert dag.get_task("wait_until_caught_up").downstream_task_ids == {"archive", "collect_orphans", "days"}


def test_archives_raw_first_and_a_failure_of_that_stops_no_rebuild(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]
    archive, rebuild = dag.get_task("archive"), dag.get_task("rebuild_day.rebuild")

    assert archive.application.endswith("/spark_jobs/archive_day.py")
    assert archive.application_args == ["--run-id", "{{ run_id }}"]
    assert archive.pool == rebuild.pool == "rebuild"
    assert archive.priority_weight > rebuild.priority_weight
    assert archive.downstream_task_ids == set()


@pytest.mark.parametrize(("run_type", "is_skipped"), [("scheduled", False), ("backfill", True)])
def test_a_backfill_does_not_archive_for_each_of_its_days(dag_bag, run_type, is_skipped):
    from airflow.sdk.exceptions import AirflowSkipException

    hook = dag_bag.dags["nightly_rebuild"].get_task("archive")._pre_execute_hook
    context = {"dag_run": SimpleNamespace(run_type=run_type)}
    with pytest.raises(AirflowSkipException) if is_skipped else nullcontext():
        hook(context)


@pytest.mark.parametrize("task_id", ["archive", "rebuild_day.rebuild"])
@pytest.mark.parametrize(("code", "is_final"), [(78, True), (2, True), (75, False), (1, False), (137, False)])
def test_a_job_that_a_person_has_to_look_at_is_not_tried_again(dag_bag, monkeypatch, task_id, code, is_final):
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local")
    monkeypatch.setattr(SparkSubmitHook, "_build_spark_submit_command", lambda *_: ["sh", "-c", f"exit {code}"])
    task = rendered(dag_bag.dags["nightly_rebuild"].get_task(task_id), "scheduled")

    with pytest.raises(AirflowException, match=f"Error code is: {code}") as raised:
        task.execute({})

    assert isinstance(raised.value, AirflowFailException) == is_final


def test_a_job_dies_with_its_task(dag_bag, monkeypatch, tmp_path):
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    started = tmp_path / "pid"
    job = ["sh", "-c", f"echo $$ > {started}.part; mv {started}.part {started}; exec sleep 600"]
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local")
    monkeypatch.setattr(SparkSubmitHook, "_build_spark_submit_command", lambda *_: job)
    task = rendered(dag_bag.dags["nightly_rebuild"].get_task("rebuild_day.rebuild"), "scheduled")

    if (worker := os.fork()) == 0:
        task.execute({})
        os._exit(0)
    wait_until(started.exists, 60, "the job runs")
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)

    pid = int(started.read_text())
    try:
        wait_until(lambda: not is_running(pid), 30, "the job is gone")
    finally:
        kill(pid)


def test_leaves_days_alone_that_a_person_holds(dag_bag):
    *_, is_by_hand, _, _ = dag_bag.dags["nightly_rebuild"].get_task("rebuild_day.publish").op_args

    assert is_by_hand is False


def test_an_approval_that_was_marked_as_done_and_did_not_run_publishes_nothing(dag_bag):
    from include.airflow_support import steps

    publish = dag_bag.dags["nightly_rebuild"].get_task("rebuild_day.publish")
    with pytest.raises(steps.ApprovalMissing, match="clear it with downstream tasks"):
        publish.python_callable("board_detail", DAY, "a-run", "me", "why", False, "False", None)


def test_is_on_from_the_start(dag_bag):
    assert dag_bag.dags["nightly_rebuild"].is_paused_upon_creation is False


def test_certifies_what_earlier_nights_left_beside_its_own_days(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]

    assert dag.get_task("certify_earlier").upstream_task_ids == {"uncertified_days"}
    assert "days" in dag.get_task("uncertified_days").upstream_task_ids


def test_a_day_that_newer_records_reached_meanwhile_is_not_green_and_fails_no_night(dag_bag, monkeypatch):
    from airflow.sdk.exceptions import AirflowSkipException

    from include.airflow_support import steps

    def refuse(pipeline, day):
        raise steps.NeedsRebuild("2 records reached the day after it was built", day=day)

    monkeypatch.setattr(steps, "certify", refuse)
    with pytest.raises(AirflowSkipException, match="not certified: 2 records reached the day"):
        dag_bag.dags["nightly_rebuild"].get_task("rebuild_day.certify").python_callable("board_detail", DAY)


class TestBudget:
    @pytest.fixture
    def begin(self, dag_bag, monkeypatch):
        """Begins the day's rebuild so many seconds after the run's start."""
        for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATABASE_HOST"):
            monkeypatch.setenv(name, "localhost:1")
        monkeypatch.setenv("NIGHT_BUDGET_S", "3600")
        task = rendered(dag_bag.dags["nightly_rebuild"].get_task("rebuild_day.rebuild"), "scheduled")

        def begin(after_s, try_number=1):
            started_at = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=after_s)
            task._pre_execute_hook(
                {"dag_run": SimpleNamespace(start_date=started_at), "ti": SimpleNamespace(try_number=try_number),
                 "task": task}
            )  # fmt: skip

        return begin

    def test_a_day_within_the_budget_is_begun(self, begin):
        begin(after_s=3000)

    def test_a_day_beyond_the_budget_is_left_for_the_next_night_and_told(self, begin):
        from airflow.sdk.exceptions import AirflowSkipException

        with pytest.raises(AirflowSkipException, match=f"day {DAY} is left for the next night"):
            begin(after_s=4000)

    def test_a_day_that_was_begun_or_that_a_person_cleared_goes_on(self, begin):
        begin(after_s=4000, try_number=2)

    def test_another_pipeline_has_its_own(self, begin, monkeypatch):
        monkeypatch.setenv("BOARD_DETAIL__NIGHT_BUDGET_S", "7200")
        begin(after_s=4000)

    def test_by_hand_there_is_none(self, dag_bag):
        task = rendered(dag_bag.dags["reprocess_days"].get_task("rebuild_day.rebuild"), "manual", FORM)

        assert task._pre_execute_hook is None
