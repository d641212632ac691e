"""The DAG that watches: its schedule, and what its task does without PostgreSQL, where alerts are remembered."""

import datetime as dt
import json

import pytest

from include.contracts.errors import DatabaseUnavailable
from include.integrity.watch.alerts import NotNotified
from include.runtime.settings import Settings

pytestmark = pytest.mark.usefixtures("dag_bag")  # Airflow reads its environment when it is imported

OUT = DatabaseUnavailable(host="db", port=5432)


class Variables:
    """Airflow's variables, which a running task reads and writes over its API: the JSON text by key."""

    def __init__(self):
        self.kept = {}

    def get(self, key, default, deserialize_json):
        assert deserialize_json
        return json.loads(self.kept[key]) if key in self.kept else default

    def set(self, key, value, serialize_json):
        assert serialize_json
        self.kept[key] = json.dumps(value)

    def delete(self, key):
        del self.kept[key]


class Channel:
    def __init__(self):
        self.taken = []
        self.is_down = False

    def __call__(self, notice):
        if self.is_down:
            raise OSError
        self.taken.append((notice.event, notice.finding.name, notice.since))


@pytest.fixture
def channels():
    return {"log": Channel(), "webhook": Channel()}


@pytest.fixture
def silence(monkeypatch, channels):
    from include.airflow_support import alerts

    monkeypatch.setattr(alerts, "Variable", Variables())
    return lambda: alerts._DatabaseSilence("board_detail", channels)


@pytest.mark.parametrize("dag_id", ["watch_pipeline", "watch_pipeline_order_detail"])
def test_runs_every_five_minutes_and_ends_before_the_next_run(dag_bag, dag_id):
    dag = dag_bag.dags[dag_id]
    (task,) = dag.tasks

    assert dag.timetable.expression == "*/5 * * * *"
    assert dag.is_paused_upon_creation is False
    assert task.execution_timeout < dt.timedelta(minutes=5)
    assert task.retries == 0


@pytest.mark.parametrize(("suffix", "zone"), [("", "Asia/Seoul"), ("_order_detail", "America/New_York")])
def test_kafka_and_duplicates_are_audited_each_morning_of_the_pipelines_zone(dag_bag, suffix, zone):
    dag = dag_bag.dags[f"audit{suffix}"]

    assert (dag.timetable.expression, str(dag.timetable.timezone)) == ("0 9 * * *", zone)
    assert dag.is_paused_upon_creation is False
    assert {task.task_id: task.upstream_task_ids for task in dag.tasks} == {"kafka": set(), "stream": set()}


def test_an_outage_of_postgresql_is_told_once_and_its_end_too(silence, channels):
    for _ in range(3):
        silence().begins(OUT)
    for _ in range(2):
        silence().ends()

    for channel in channels.values():
        assert [(event, name) for event, name, _ in channel.taken] == [
            ("opened", "database_silent"),
            ("closed", "database_silent"),
        ]
        assert len({since for _, _, since in channel.taken}) == 1


def test_a_channel_that_is_down_meanwhile_is_told_later(silence, channels):
    channels["webhook"].is_down = True
    silence().begins(OUT)
    channels["webhook"].is_down = False
    silence().begins(OUT)
    channels["webhook"].is_down = True
    silence().ends()
    channels["webhook"].is_down = False
    silence().ends()

    for channel in channels.values():
        assert [event for event, _, _ in channel.taken] == ["opened", "closed"]


def test_a_channel_that_was_never_told_of_an_outage_gets_no_all_clear(silence, channels):
    channels["webhook"].is_down = True
    silence().begins(OUT)
    channels["webhook"].is_down = False
    silence().ends()
    assert channels["webhook"].taken == []


class Instance:
    """The task instance, which knows the DAGs' state."""

    def get_dag(self, dag_id):
        return type("Dag", (), {"is_paused": dag_id == "nightly_rebuild"})


@pytest.mark.parametrize(("status_code", "is_raised"), [(404, False), (500, True)])
def test_a_dag_that_airflow_has_not_read_yet_is_not_paused(status_code, is_raised):
    """The first watch of a new stack comes while the DAG processor still reads the files, and must not be red."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    from include.airflow_support.alerts import _paused

    class Reading:
        def get_dag(self, dag_id):
            if dag_id == "undo_day":
                raise AirflowRuntimeError(
                    ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status_code})
                )
            return type("Dag", (), {"is_paused": True})

    if is_raised:
        with pytest.raises(AirflowRuntimeError):
            _paused("board_detail", {"ti": Reading()})
    else:
        assert "undo_day" not in _paused("board_detail", {"ti": Reading()})


class TestTask:
    @pytest.fixture
    def settings(self, postgres, tmp_path, monkeypatch):
        from include.airflow_support import alerts
        from include.kafka import offsets
        from tests.support.pipeline import environment, migrated

        monkeypatch.setattr(alerts, "Variable", Variables())
        monkeypatch.setattr(offsets, "TIMEOUT_S", 5)  # of a broker that is not there, each time
        for name, value in environment(None, postgres, "watching", tmp_path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("GATEWAY_URL", "http://127.0.0.1:9")
        return migrated(None, postgres, "watching", tmp_path)

    def test_finds_remembers_and_tells(self, settings, caplog, monkeypatch):
        from include.airflow_support.alerts import watch_pipeline
        from tests.support.pipeline import rows

        caplog.set_level("INFO")
        open_alerts = ["dag_paused nightly_rebuild", "gateway_silent http://127.0.0.1:9", "kafka_silent",
                       "stream_silent join", "stream_silent serve"]  # fmt: skip
        first = watch_pipeline("board_detail", {"ti": Instance()})
        assert sorted(first["findings"]) == open_alerts
        assert first["sent"] == {"log": 5}
        assert len([line for line in caplog.messages if line.startswith("[critical] board_detail: ")]) == 4

        monkeypatch.setenv("ALERT_WEBHOOK_URL", "http://127.0.0.1:9/hooks")
        with pytest.raises(NotNotified, match="webhook"):
            watch_pipeline("board_detail", {"ti": Instance()})
        assert rows(settings, "SELECT channel, count(*) FROM alert_notice WHERE sent_at IS NULL GROUP BY 1") == [
            ("webhook", 5)
        ]

    def test_records_drifts_of_kafka_as_alerts_beside_those_of_the_watch(self, settings, kafka, caplog, monkeypatch):
        from include.airflow_support.alerts import audit_kafka, watch_pipeline
        from tests.support.broker import make_pipeline_topics
        from tests.support.pipeline import rows

        def open_alerts():
            found = "SELECT name, subject FROM alert WHERE closed_at IS NULL AND runbook = 'audit'"
            return rows(settings, found)

        watch_pipeline("board_detail", {"ti": Instance()})
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
        missing = [("topic_missing", name) for name in ("board", "board-detail", "member")]
        assert audit_kafka("board_detail", {})["sent"] == {"log": 3}
        assert sorted(open_alerts()) == missing
        watch_pipeline("board_detail", {"ti": Instance()})
        assert sorted(open_alerts()) == missing

        made = Settings.from_environment()
        make_pipeline_topics(made.kafka)
        assert audit_kafka("board_detail", {}) == {"findings": [], "sent": {"log": 3}}
        assert open_alerts() == []

    def test_publishes_the_rate_of_duplicates_and_alerts_above_the_limit(self, settings, caplog, monkeypatch, capsys):
        from include.airflow_support.alerts import audit_stream
        from pipeline.__main__ import main
        from tests.support.pipeline import rows
        from tests.support.publication import publish
        from tests.support.serving import DAY, build, row

        build(settings, [row(1, 1), row(2, 2), row(3, 3)], cut=9, run_id="r")
        publish(settings, DAY, "r")
        assert audit_stream("board_detail", {}) == {
            "findings": [], "rates": {str(DAY): "0.00%"}, "sent": {"log": 0},
        }  # fmt: skip

        rows(settings, "UPDATE generation SET duplicate_count = 1")
        assert audit_stream("board_detail", {}) == {
            "findings": [f"stream_duplicates {DAY}"], "rates": {str(DAY): "25.00%"}, "sent": {"log": 1},
        }  # fmt: skip
        assert f"25.00% of the records that the stream wrote for day {DAY} are duplicates (1)" in caplog.text
        assert main(["days", "status"]) == 0
        assert "25.00%" in capsys.readouterr().out

        monkeypatch.setenv("ALERT_DUPLICATES_PERCENT", "25")
        assert audit_stream("board_detail", {})["sent"] == {"log": 1}
        assert rows(settings, "SELECT count(*) FROM alert WHERE closed_at IS NULL") == [(0,)]

    @pytest.mark.parametrize(
        ("modes", "finds"),
        [
            ({"1 day": "exactly_once"}, True),
            ({"1 day": "at_least_once", "0": "exactly_once"}, True),
            ({"0": "at_least_once"}, False),
            ({"-1 hour": "exactly_once"}, False),  # only since the day began
            ({"1 day": "exactly_once", "-1 hour": "at_least_once", "-2 hours": "exactly_once"}, False),
            ({"1 day": "exactly_once", "-1000 days": "at_least_once"}, True),  # after it was published
        ],
    )
    def test_a_day_of_exactly_once_delivery_may_have_no_duplicate(self, settings, caplog, monkeypatch, modes, finds):
        from include.airflow_support.alerts import audit_stream
        from tests.support.pipeline import rows
        from tests.support.publication import publish
        from tests.support.serving import DAY, build, row

        monkeypatch.setenv("ALERT_DUPLICATES_PERCENT", "50")
        build(settings, [row(1, 1), row(2, 2), row(3, 3)], cut=9, run_id="r")
        publish(settings, DAY, "r")
        zone = settings.timezone
        for before, mode in modes.items():
            rows(
                settings,
                "INSERT INTO stream_delivery VALUES (%s::timestamp AT TIME ZONE %s - %s::interval, %s)",
                (DAY.date, zone, before, mode),
            )
        delivery = "exactly_once" if finds else "at_least_once"
        assert rows(settings, "SELECT delivery FROM day_trust WHERE day = %s", (DAY.date,)) == [(delivery,)]
        assert audit_stream("board_detail", {})["findings"] == []
        rows(settings, "UPDATE generation SET duplicate_count = 1")
        assert audit_stream("board_detail", {})["findings"] == [f"stream_duplicates {DAY}"] * finds
        assert ("although the delivery was exactly once" in caplog.text) == finds

    def test_tells_that_postgresql_does_not_answer_and_fails(self, settings, caplog, monkeypatch):
        from include.airflow_support.alerts import watch_pipeline

        monkeypatch.setenv("DATABASE_PORT", "1")
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                watch_pipeline("board_detail", {"ti": Instance()})
        told = [line for line in caplog.messages if "database_silent" in line]
        assert len(told) == 1
        assert told[0].startswith("[critical] board_detail: database_silent; message: PostgreSQL did not answer: ")
