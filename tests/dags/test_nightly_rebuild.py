"""The nightly DAG: which day a run is for, and in which order it works."""

import datetime as dt
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.support.messages import DAY_NOT_OVER, DAYS_NOT_REBUILT, NO_DAY

STARTED_AT = dt.datetime(2026, 11, 20, 19, tzinfo=dt.UTC)


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


@pytest.mark.parametrize(
    ("last", "now", "is_over"),
    [
        ("2026-11-20T00:00:00Z", "2026-11-20T15:00:00Z", True),  # midnight in Seoul
        ("2026-11-20T00:00:00Z", "2026-11-20T14:59:59Z", False),
        ("2026-11-20T23:59:59.999Z", "2026-11-20T14:59:59Z", False),
        ("2026-12-31T00:00:00Z", "2026-11-21T00:00:00Z", False),
    ],
)
def test_a_backfill_whose_last_day_is_not_over_is_refused_as_a_whole(timetable, monkeypatch, last, now, is_over):
    from airflow.models.backfill import InvalidBackfillDate

    clock = SimpleNamespace(now=lambda: dt.datetime.fromisoformat(now))
    monkeypatch.setattr("include.airflow_support.timetable.SystemClock", lambda: clock)
    infos = timetable.iter_partition_dagrun_infos(
        earliest=dt.datetime(2026, 11, 18, tzinfo=dt.UTC), latest=dt.datetime.fromisoformat(last)
    )
    if is_over:
        assert [info.partition_key for info in infos] == ["2026-11-18", "2026-11-19", "2026-11-20"]
        return
    with pytest.raises(InvalidBackfillDate, match=f"^to={last[:10]}: {DAY_NOT_OVER.format('Asia/Seoul')} "):
        next(infos)


@pytest.mark.parametrize("first", ["0001-01-01", "0001-01-03", "1900-01-01", "1968-12-31", "9999-12-31"])
def test_a_backfill_of_a_year_that_the_contract_does_not_have_is_refused(timetable, first):
    from airflow.models.backfill import InvalidBackfillDate

    earliest, latest = (dt.datetime.fromisoformat(f"{day}T00:00:00Z") for day in (first, "2026-11-18"))
    with pytest.raises(InvalidBackfillDate, match="year"):
        next(timetable.iter_partition_dagrun_infos(earliest=earliest, latest=latest))


@pytest.mark.parametrize("key", [None, "", "2026-11-20"])
def test_a_run_by_hand_is_refused_since_it_has_no_day(timetable, key):
    with pytest.raises(ValueError, match=NO_DAY):
        timetable.resolve_partition_date(key)


def test_the_button_that_opens_the_form_of_a_backfill_is_not_locked(dag_bag):
    assert dag_bag.dags["nightly_rebuild"].allowed_run_types is None


def test_replays_and_catches_up_before_it_archives_and_chooses_its_days(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]

    assert dag.get_task("replay_fallback").downstream_task_ids == {"wait_until_caught_up"}
    assert dag.get_task("wait_until_caught_up").downstream_task_ids == {"archive", "collect_orphans", "days"}


def test_the_archive_delays_no_rebuild_and_its_failure_stops_none(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]
    archive, rebuild = dag.get_task("archive"), dag_bag.dags["rebuild_day"].get_task("rebuild")

    assert archive.application.endswith("/spark_jobs/archive_day.py")
    assert archive.application_args == ["--run-id", "{{ run_id }}"]
    assert (archive.pool, rebuild.pool) == ("archive", "rebuild")
    assert archive.downstream_task_ids == set()


@pytest.mark.parametrize(("run_type", "is_skipped"), [("scheduled", False), ("backfill", True)])
def test_a_backfill_does_not_archive_for_each_of_its_days(dag_bag, run_type, is_skipped):
    from airflow.sdk.exceptions import AirflowSkipException

    hook = dag_bag.dags["nightly_rebuild"].get_task("archive")._pre_execute_hook
    context = {"dag_run": SimpleNamespace(run_type=run_type)}
    with pytest.raises(AirflowSkipException) if is_skipped else nullcontext():
        hook(context)


def test_is_on_from_the_start(dag_bag):
    assert dag_bag.dags["nightly_rebuild"].is_paused_upon_creation is False


def test_certifies_what_earlier_nights_left_beside_its_own_days(dag_bag):
    dag = dag_bag.dags["nightly_rebuild"]

    assert dag.get_task("certify_earlier").upstream_task_ids == {"uncertified_days"}
    assert "days" in dag.get_task("uncertified_days").upstream_task_ids


class TestStartDays:
    @pytest.fixture
    def start(self, dag_bag, monkeypatch):
        """Runs the task in a night; returns the events that Airflow's API server gets."""
        from airflow.sdk.execution_time.context import OutletEventAccessors
        from airflow.sdk.execution_time.task_runner import _serialize_outlet_events

        dag = dag_bag.dags["nightly_rebuild"]

        def start(days, is_paused=False, run_type="scheduled"):
            events = OutletEventAccessors()
            context = {
                "dag": dag,
                "dag_run": SimpleNamespace(triggering_user_name=None, start_date=STARTED_AT, run_type=run_type),
                "ti": SimpleNamespace(get_dag=lambda dag_id: SimpleNamespace(is_paused=is_paused)),
                "outlet_events": events,
            }
            monkeypatch.setattr("include.airflow_support.assets.get_current_context", lambda: context)
            dag.get_task("start_days").python_callable("board_detail", days, "a-night")
            return list(_serialize_outlet_events(events))

        return start

    def test_each_day_has_an_event_with_its_key_in_the_order_of_the_days(self, start):
        days = [f"2026-11-{number:02}" for number in (20, 3, 17, 1, 19, 2, 18)]

        events = start(days)

        assert [event["partition_key"] for event in events] == days
        assert {event["dest_asset_key"]["name"] for event in events} == {"board_detail_due_day"}
        assert events[0]["extra"] == {
            "reason": "nightly_rebuild", "made_by": "airflow", "built_by": "a-night",
            "night_started_at": STARTED_AT.isoformat(),
        }  # fmt: skip

    def test_days_of_a_backfill_are_not_left_for_a_night_which_would_not_take_them(self, start):
        (event,) = start(["2026-11-20"], run_type="backfill")
        assert event["extra"]["night_started_at"] is None

    def test_without_days_it_is_skipped_since_airflow_would_send_an_event_of_the_nights_own_key(self, start):
        from airflow.sdk.exceptions import AirflowSkipException

        with pytest.raises(AirflowSkipException, match="no day needs a rebuild"):
            start([])

    def test_a_paused_dag_whose_events_airflow_would_drop_fails_the_night_with_the_remedy(self, start):
        from include.airflow_support.assets import DagPaused

        with pytest.raises(DagPaused, match=f"days 2026-11-19, 2026-11-20 {DAYS_NOT_REBUILT}"):
            start(["2026-11-19", "2026-11-20"], is_paused=True)

    def test_its_asset_starts_the_days_of_its_own_pipeline(self, dag_bag):
        for suffix, pipeline in (("", "board_detail"), ("_order_detail", "order_detail")):
            (asset,) = dag_bag.dags[f"nightly_rebuild{suffix}"].get_task("start_days").outlets

            assert asset.name == f"{pipeline}_due_day"
            assert dag_bag.dags[f"rebuild_day{suffix}"].timetable.asset_condition == asset
