"""The DAG of a day: when it is begun, what it is told, and when trying again can help."""

import datetime as dt
import os
import signal
from types import SimpleNamespace

import pytest

from include.runtime.process_tree import is_running, kill
from tests.dags.rendering import DAY, rendered
from tests.servers import wait_until
from tests.support.messages import RECORDS_REACHED

FORM = {"from": DAY, "to": DAY, "reason": "a test"}


def test_its_run_is_at_the_midnight_of_its_day_in_the_time_zone_of_the_pipeline(dag_bag):
    from airflow.serialization.serialized_objects import DagSerialization

    for dag_id, midnight in (
        ("rebuild_day", dt.datetime(2026, 11, 19, 15, tzinfo=dt.UTC)),  # Asia/Seoul
        ("rebuild_day_order_detail", dt.datetime(2026, 11, 20, 5, tzinfo=dt.UTC)),  # America/New_York
    ):
        dag = DagSerialization.from_dict(DagSerialization.to_dict(dag_bag.dags[dag_id]))

        assert dag.timetable.default_partition_mapper.to_downstream(DAY) == DAY
        assert dag.timetable.resolve_partition_date(DAY) == midnight


def test_is_on_from_the_start_since_airflow_drops_the_events_of_a_paused_dag(dag_bag):
    assert dag_bag.dags["rebuild_day"].is_paused_upon_creation is False


def test_announces_a_certified_day(dag_bag):
    for dag_id, task_id in (
        ("rebuild_day", "certify"),
        ("reprocess_days", "rebuild_day.certify"),
        ("nightly_rebuild", "certify_earlier"),
        ("undo_day", "undo"),
    ):
        for suffix, pipeline in (("", "board_detail"), ("_order_detail", "order_detail")):
            task = dag_bag.dags[dag_id + suffix].get_task(task_id)
            outlets = task.partial_kwargs["outlets"] if task.is_mapped else task.outlets

            assert [asset.name for asset in outlets] == [f"{pipeline}_certified_day"], dag_id


@pytest.mark.parametrize(
    ("dag_id", "task_id"),
    [("nightly_rebuild", "archive"), ("nightly_rebuild", "rebuild_together"), ("rebuild_day", "rebuild")],
)
@pytest.mark.parametrize(("code", "is_final"), [(78, True), (2, True), (75, False), (1, False), (137, False)])
def test_a_job_that_a_person_has_to_look_at_is_not_tried_again(dag_bag, monkeypatch, dag_id, task_id, code, is_final):
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local")
    monkeypatch.setattr(SparkSubmitHook, "_build_spark_submit_command", lambda *_: ["sh", "-c", f"exit {code}"])
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATABASE_HOST"):
        monkeypatch.setenv(name, "localhost:1")
    run_type = "asset_triggered" if dag_id == "rebuild_day" else "scheduled"
    task = rendered(dag_bag.dags[dag_id].get_task(task_id), run_type, days=(DAY, "2026-11-19"))

    with pytest.raises(AirflowException, match=f"Error code is: {code}") as raised:
        task.execute({"dag_run": SimpleNamespace(start_date=dt.datetime.now(dt.UTC), clear_number=1)})

    assert isinstance(raised.value, AirflowFailException) == is_final


def test_a_job_dies_with_its_task(dag_bag, monkeypatch, tmp_path):
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    started = tmp_path / "pid"
    job = ["sh", "-c", f"echo $$ > {started}.part; mv {started}.part {started}; exec sleep 600"]
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local")
    monkeypatch.setattr(SparkSubmitHook, "_build_spark_submit_command", lambda *_: job)
    task = rendered(dag_bag.dags["nightly_rebuild"].get_task("archive"), "scheduled")

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
    *_, is_by_hand, _ = dag_bag.dags["rebuild_day"].get_task("publish").op_args

    assert is_by_hand is False


def test_an_approval_that_was_marked_as_done_and_did_not_run_publishes_nothing(dag_bag):
    from include.airflow_support import steps

    publish = dag_bag.dags["rebuild_day"].get_task("publish")
    with pytest.raises(steps.ApprovalMissing, match="clear it with downstream tasks"):
        publish.python_callable("board_detail", DAY, "a-run", "me", "why", False, None)


def test_a_day_that_newer_records_reached_meanwhile_is_not_green_and_fails_no_night(dag_bag, monkeypatch):
    from airflow.sdk.exceptions import AirflowSkipException

    from include.airflow_support import steps

    def refuse(pipeline, day):
        raise steps.NeedsRebuild(f"2 {RECORDS_REACHED}", day=day)

    monkeypatch.setattr(steps, "certify", refuse)
    with pytest.raises(AirflowSkipException, match=f"not certified: 2 {RECORDS_REACHED}"):
        dag_bag.dags["rebuild_day"].get_task("certify").python_callable("board_detail", DAY)


class TestBudget:
    @pytest.fixture
    def begin(self, dag_bag, monkeypatch):
        """Begins the day's rebuild so many seconds after the start of the night that requested it."""
        from include.airflow_support.tasks import JobSubmitOperator

        for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATABASE_HOST"):
            monkeypatch.setenv(name, "localhost:1")
        monkeypatch.setenv("NIGHT_BUDGET_S", "3600")
        task = rendered(dag_bag.dags["rebuild_day"].get_task("rebuild"), "asset_triggered")
        monkeypatch.setattr(JobSubmitOperator, "execute", lambda *_: "submitted")

        def begin(after_s, try_number=1, clear_number=0, **request):
            now = dt.datetime.now(dt.UTC)
            request = request or {"night_started_at": (now - dt.timedelta(seconds=after_s)).isoformat()}
            yesterday = {"night_started_at": (now - dt.timedelta(days=1)).isoformat()}
            events = [
                SimpleNamespace(timestamp=now, extra=request),
                SimpleNamespace(timestamp=now - dt.timedelta(seconds=1), extra=yesterday),
            ]
            return task.execute(
                {"dag_run": SimpleNamespace(start_date=now, clear_number=clear_number),
                 "ti": SimpleNamespace(try_number=try_number), "task": task,
                 "triggering_asset_events": {"asset": events}}
            )  # fmt: skip

        return begin

    def test_a_day_within_the_budget_is_begun(self, begin):
        assert begin(after_s=3000) == "submitted"

    def test_a_day_beyond_the_budget_is_left_for_the_next_night_and_told(self, begin):
        from airflow.sdk.exceptions import AirflowSkipException

        with pytest.raises(AirflowSkipException, match=f"day {DAY} is left for the next night"):
            begin(after_s=4000)

    def test_a_day_that_was_begun_or_that_a_person_cleared_goes_on(self, begin):
        assert begin(after_s=4000, try_number=2) == "submitted"
        # a run that was failed while it was queued, then cleared
        assert begin(after_s=4000, clear_number=1) == "submitted"

    def test_another_pipeline_has_its_own(self, begin, monkeypatch):
        monkeypatch.setenv("BOARD_DETAIL__NIGHT_BUDGET_S", "7200")
        assert begin(after_s=4000) == "submitted"

    def test_a_day_that_a_person_requested_has_no_budget(self, begin):
        assert begin(after_s=4000, from_rest_api=True) == "submitted"
        assert begin(after_s=4000, night_started_at=None) == "submitted"  # a backfill

    def test_by_hand_there_is_none(self, dag_bag):
        from include.airflow_support.tasks import JobSubmitOperator

        task = rendered(dag_bag.dags["reprocess_days"].get_task("rebuild_day.rebuild"), "manual", FORM)

        assert type(task) is JobSubmitOperator
