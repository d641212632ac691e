"""Helpers for tests of a running Airflow: days with posts, what readers see of them, runs by a person."""

import datetime as dt
from zoneinfo import ZoneInfo

from include.contracts.clock import rfc3339
from include.database.sessions import connect
from include.kafka.offsets import OffsetReader
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.certifying import take_everything
from tests.support.http import HTTP
from tests.support.serving import opened_store, row, serve

RUN_DEADLINE_S = 240.0
REBUILD_PAUSE = "rebuild.before_finish"  # the failpoint of a driver that has written its rows


def noon(day):
    """An instant of the day, as a topic carries it."""
    return rfc3339(dt.datetime.combine(day.date, dt.time(12), ZoneInfo(day.zone)))


def post(pipeline, topic, value):
    """Send it; a stream that shows nothing takes it."""
    with pipeline.gateway.client() as gateway:
        assert gateway.post_event(topic, value)["keptIn"] == "kafka"
    take_everything(pipeline.settings)


def post_board(pipeline, day, board_id, member_id=7):
    post(pipeline, "board", board(board_id, member_id, createdAt=noon(day), modifiedAt=noon(day)))


def shown(pipeline, day):
    """The day's rows as an analyst reads them: (board id, nickname, finality)."""
    with connect(pipeline.settings.database, "analyst") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT board_id, nickname, finality FROM board_detail_masked"
            " WHERE created_at >= %s AND created_at < %s ORDER BY board_id",
            (day.start, day.end),
        )
        return cursor.fetchall()


def status(pipeline, day):
    """The day's status: (status, rows, pending, generation)."""
    with connect(pipeline.settings.database, "analyst") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT status, row_count, pending_count, generation_id FROM day_status WHERE day = %s", (day.date,)
        )
        return cursor.fetchone()


def held(pipeline, day):
    """Why the day is held; None when it is not."""
    with connect(pipeline.settings.database, "analyst") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT held_reason FROM day_trust WHERE day = %s", (day.date,))
        return cursor.fetchone()[0]


def nights(operator, today, dag_id="nightly_rebuild"):
    """The runs that Airflow made by itself for the last nights, the last one first.

    One is made when Airflow starts, another if the hour of the night comes while the tests run.
    """
    runs = [run for age in range(1, 6) for run in operator.runs_of_day(dag_id, today.before(age).date)]
    return [run for run in runs if run.run_id.startswith("scheduled__")]


def opened(pipeline, day):
    """The day is there, as the stream leaves it when it writes a row of it."""
    with connect(pipeline.settings.database, "stream") as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO day_publication (day) VALUES (%s) ON CONFLICT DO NOTHING", (day.date,))


def reprocessing(day, **values):
    """The form of reprocess_days for one day; there is no stream to wait for."""
    return {"from": str(day), "to": str(day), "reason": "a test", "catch_up_timeout_s": 0, **values}


def backfill(operator, day):
    """The run of the day that a backfill of the night has started, when it has succeeded."""
    night = operator.backfill_day("nightly_rebuild", day.date, {"catch_up_timeout_s": 0})
    assert night.partition_key == str(day)
    (run,) = wait_for_night(operator, night)
    assert run.partition_key == str(day)
    return run


def wait_for_night(operator, night):
    """The runs of the days that the night has started, when all have succeeded."""
    operator.wait(night, RUN_DEADLINE_S)
    return [operator.wait(run, RUN_DEADLINE_S) for run in operator.rebuilds_of(night)]


def scheduler_heartbeat(pipeline):
    health = HTTP.get(f"{pipeline.airflow_url}/api/v2/monitor/health").json()
    return health["scheduler"]["latest_scheduler_heartbeat"]


def served_from_nowhere(pipeline, day, board_id):
    """The stream shows a post of the day from below the cut, of which raw has no record: a build takes it away."""
    ends = OffsetReader(pipeline.settings.kafka.connection).high_watermarks("board")
    partition = max(ends, key=lambda each: ends[each])
    instant = dt.datetime.combine(day.date, dt.time(12), ZoneInfo(day.zone))
    lost = row(board_id, 0, stream_partition=partition, created_at=instant, modified_at=instant, day=day.date)
    store = opened_store(pipeline.settings)
    try:
        unread = store.committed_offsets[0]
        assert serve(store, [lost | {"title": "~~~ <b>", "kafka_offset": unread}]) == 1
    finally:
        store.close()


def wait_for_question(pipeline, operator, run):
    """Until the run's first day waits for a person, and Airflow takes an answer."""
    ended = {"awaiting_input", "success", "failed", "skipped", "upstream_failed"}
    seen = [""]

    def has_ended():
        seen[0] = operator.task_states(run).get("rebuild_day.approve[0]")
        return seen[0] in ended

    wait_until(has_ended, RUN_DEADLINE_S, "the question")
    assert seen == ["awaiting_input"], operator.task_states(run)
    # Airflow fails a task that goes on before the scheduler has seen the end of the process that asked
    heartbeats = {scheduler_heartbeat(pipeline)}
    wait_until(
        lambda: heartbeats.add(scheduler_heartbeat(pipeline)) or len(heartbeats) == 3, 60, "two rounds of the scheduler"
    )


def approval(pipeline, user, run, option=None):
    """The question of a run's first day; with an option, the user's answer to it."""
    with pipeline.airflow(user) as client:
        address = (
            f"{pipeline.airflow_url}/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"
            "/taskInstances/rebuild_day.approve/0/hitlDetails"
        )
        headers = client.authorization()
        if option is None:
            return HTTP.get(address, headers=headers)
        answer = {"chosen_options": [option], "params_input": {}}
        return HTTP.patch(address, headers=headers, json=answer)


def returned(pipeline, run, task_id):
    """The value that the task returned, as JSON."""
    with pipeline.airflow("viewer") as viewer:
        address = (
            f"{pipeline.airflow_url}/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}"
            "/xcomEntries/return_value"
        )
        answer = HTTP.get(address, headers=viewer.authorization(), params={"stringify": False})
    assert answer.is_success, answer.text
    return answer.json()["value"]
