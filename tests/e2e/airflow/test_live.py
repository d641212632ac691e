"""Airflow as an operator uses it: its four components, the real DAGs, the real Spark job, a real broker and database.

No stream runs here: the batch layer must be right without it.
"""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from demo.airflow_client import AirflowRefused, RunFailed
from include.contracts.clock import rfc3339
from include.contracts.day import Day
from tests.e2e.pipelines.test_second import customer, order
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.airflow import (
    RUN_DEADLINE_S,
    approval,
    backfill,
    held,
    nights,
    noon,
    opened,
    post,
    post_board,
    reprocessing,
    served_from_nowhere,
    shown,
    status,
    wait_for_night,
    wait_for_question,
)
from tests.support.certifying import take_everything
from tests.support.http import HTTP
from tests.support.messages import DAY_NOT_OVER, DAYS_NOT_REBUILT, NO_DAY
from tests.support.pipeline import rows

pytestmark = pytest.mark.timeout(600)  # a Spark job takes 15 s here, and minutes on a busy machine


@pytest.fixture(scope="module")
def day(today):
    """A day that last night's run, which Airflow makes at its start, does not take."""
    return today.before(3)


def test_a_fresh_stack_runs_the_last_night_by_itself_and_no_other(operator, began, today):
    def last_night(instant):
        return str(Day.of(instant - dt.timedelta(hours=4), today.zone).before())

    made = nights(operator, today)

    assert made[-1].partition_key == last_night(began)
    came_since = {last_night(dt.datetime.now(dt.UTC))} - {last_night(began)}
    assert {run.partition_key for run in made[:-1]} <= came_since
    finished = operator.wait(made[-1], RUN_DEADLINE_S)
    assert finished.state == "success"
    states = operator.task_states(finished)
    assert (states["days"], states["start_days"]) == ("success", "skipped")  # there was nothing to rebuild


def test_one_day_backfill_publishes_and_certifies_the_day(pipeline, operator, day):
    post(pipeline, "member", member(7, nickname="하늘", createdAt=noon(day.before(1)), modifiedAt=noon(day.before(1))))
    post_board(pipeline, day, board_id=1)
    post_board(pipeline, day, board_id=2)
    post_board(pipeline, day, board_id=3, member_id=404)
    post_board(pipeline, day.before(1), board_id=4)
    operator.wait_for_dag("follow_certified_days")
    operator.unpause("follow_certified_days")

    run = backfill(operator, day)

    assert operator.task_states(run) == dict.fromkeys(
        ("rebuild", "verify", "approve", "publish", "certify", "cover"), "success"
    )
    assert operator.runs_of_day("rebuild_day", day.before(1).date) == []
    assert shown(pipeline, day) == [(1, "하늘", "final"), (2, "하늘", "final")]
    assert status(pipeline, day)[:3] == ("certified", 2, 1)
    ((run_id, reason, made_by),) = rows(
        pipeline.settings,
        "SELECT g.run_id, g.reason, p.made_by FROM generation g JOIN publication p ON p.to_generation_id = g.id"
        " WHERE g.day = %s",
        (day.date,),
    )
    assert (run_id, reason, made_by) == (run.run_id, "nightly_rebuild", f"operator, rebuild_day {run.run_id}")


def test_dags_of_others_follow_a_day_that_is_certified_undone_and_redone(pipeline, operator, day):
    def followed():
        made = [operator.wait(run, RUN_DEADLINE_S) for run in operator.runs_of_day("follow_certified_days", day.date)]
        return [
            (operator.asset_events(run)[0]["extra"]["action"], operator.result(run, "load")) for run in reversed(made)
        ]

    wait_until(lambda: len(followed()) == 1, 60, "the run of the certified day")
    for number, action in enumerate(("undo", "redo"), 2):
        form = {"day": str(day), "action": action, "dry_run": False, "reason": "a test"}
        operator.wait(operator.trigger("undo_day", form), RUN_DEADLINE_S)
        wait_until(lambda number=number: len(followed()) == number, 60, f"the run of the {action}")

    (_, published), *moved = followed()
    assert published == {"copied": str(day), "generation": status(pipeline, day)[3], "rows": 2}
    assert moved == [(action, {"dropped": str(day), "because": action}) for action in ("undo", "redo")]


def test_a_night_says_that_its_days_cannot_start(operator, today):
    day = today.before(4)
    operator.pause("rebuild_day")
    try:
        night = operator.backfill_day("nightly_rebuild", day.date, {"catch_up_timeout_s": 0})
        with pytest.raises(RunFailed, match=f"days {day} {DAYS_NOT_REBUILT}"):
            operator.wait(night, RUN_DEADLINE_S)
    finally:
        operator.unpause("rebuild_day")


def test_a_runbook_opens_from_the_documentation_of_a_dag(pipeline, operator):
    address = f"{pipeline.airflow_url}/runbooks/nightly_rebuild"

    assert HTTP.get(address).status_code == 401
    page = HTTP.get(address, headers=operator.authorization())
    assert page.text.startswith("# A night failed, or a day is not certified\n")


# Tests marked long go on where those above end: `--long` runs the whole file.
@pytest.mark.long
def test_another_backfill_of_the_day_publishes_and_certifies_it_again(pipeline, operator, day):
    earlier = {run.run_id for run in operator.runs_of_day("nightly_rebuild", day.date)}
    post_board(pipeline, day, board_id=5)

    run = backfill(operator, day)

    assert len(earlier) == 1
    assert run.run_id not in earlier
    assert [row[0] for row in shown(pipeline, day)] == [1, 2, 5]
    assert status(pipeline, day)[:3] == ("certified", 3, 1)


@pytest.mark.long
def test_a_scheduled_run_makes_up_for_missed_nights_and_rebuilds_what_late_members_changed(
    pipeline, operator, today, day
):
    # the stream is not there: its ledger says what it would, and it opens no day
    missed = [day.before(age) for age in (1, 2)]
    for number, one in enumerate(missed):
        opened(pipeline, one)
        post_board(pipeline, one, board_id=100 + number)
    post(pipeline, "member", member(7, nickname="바다", createdAt=noon(day.before(6)), modifiedAt=noon(day.before(6))))
    late = rfc3339(dt.datetime.combine(day.date, dt.time(11, 59), ZoneInfo(day.zone)))
    post(pipeline, "member", member(7, nickname="별", createdAt=noon(day.before(6)), modifiedAt=late))
    night, *_ = nights(operator, today)

    operator.rerun(night)
    runs = wait_for_night(operator, night)

    assert {run.partition_key for run in runs} >= {str(one) for one in (*missed, day)}
    (counts,) = [line for line in operator.task_log(night, "rebuild_together", 2) if "were built in" in line]
    assert f"of {len(runs)} days, {len(runs)} were built" in counts
    for run in runs:  # none of them has started Spark
        assert any("was built by" in line for line in operator.task_log(run, "rebuild"))
        assert rows(
            pipeline.settings,
            "SELECT g.run_id FROM generation g JOIN day_publication p ON p.generation_id = g.id WHERE p.day = %s",
            (run.partition_key,),
        ) == [(run.run_id,)]
    assert {nickname for _, nickname, _ in shown(pipeline, day)} == {"별"}
    assert [status(pipeline, one)[0] for one in missed] == ["certified", "certified"]
    assert status(pipeline, day)[0] == "certified"


@pytest.mark.long
def test_a_backfill_of_three_days_rebuilds_them_one_after_the_other(pipeline, operator, day):
    days = [day.before(age) for age in (2, 1, 0)]
    for number, one in enumerate(days[:2]):  # other tests know the posts of the last one
        post_board(pipeline, one, board_id=110 + number)
    first, last = (f"{one}T00:00:00Z" for one in (days[0], days[-1]))
    body = {
        "dag_id": "nightly_rebuild", "from_date": first, "to_date": last, "reprocess_behavior": "completed",
        "max_active_runs": 1, "dag_run_conf": {"catch_up_timeout_s": 0},
    }  # fmt: skip
    HTTP.post(
        f"{pipeline.airflow_url}/api/v2/backfills", headers=operator.authorization(), json=body
    ).raise_for_status()

    runs = []
    for one in days:
        runs += wait_for_night(operator, operator.runs_of_day("nightly_rebuild", one.date)[0])

    assert [run.partition_key for run in runs] == [str(one) for one in days]
    assert [status(pipeline, one)[0] for one in days] == ["certified"] * 3
    for number, one in enumerate(days[:2]):
        assert 110 + number in [board for board, _, _ in shown(pipeline, one)]


@pytest.mark.long
def test_dry_run_builds_and_publishes_nothing(pipeline, operator, day):
    post(pipeline, "member", member(8, createdAt=noon(day.before(1)), modifiedAt=noon(day.before(1))))
    post_board(pipeline, day, board_id=6, member_id=8)
    rows, published = shown(pipeline, day), status(pipeline, day)
    form = reprocessing(day, dry_run=True, reason="--what 'would' change? 변경")

    run = operator.wait(operator.trigger("reprocess_days", form), RUN_DEADLINE_S)

    assert operator.task_states(run) == {
        "days": "success",
        "replay_fallback": "success",
        "wait_until_caught_up": "success",
        "rebuild_day.rebuild[0]": "success",
        "rebuild_day.verify[0]": "success",
        "rebuild_day.difference[0]": "success",
        "rebuild_day.approve[0]": "success",
        "rebuild_day.publish[0]": "skipped",
        "rebuild_day.certify[0]": "skipped",
        "rebuild_day.cover[0]": "skipped",
        "summary": "success",
    }
    ((_, result),) = operator.result(run, "summary").items()
    assert result["result"] == "would be published"
    assert result["page"] == f"{pipeline.airflow_url}/integrity/board_detail/days/{day}"
    assert shown(pipeline, day) == rows
    assert status(pipeline, day)[3:] == published[3:]


@pytest.mark.long
def test_a_published_day_is_undone_held_and_redone(pipeline, operator, day):
    operator.wait(operator.trigger("reprocess_days", reprocessing(day, dry_run=False)), RUN_DEADLINE_S)
    after = shown(pipeline, day)
    assert [row[0] for row in after] == [1, 2, 5, 6]

    undone = operator.trigger("undo_day", {"day": str(day), "dry_run": False, "reason": "wrong authors"})
    operator.wait(undone, RUN_DEADLINE_S)
    assert [row[0] for row in shown(pipeline, day)] == [1, 2, 5]
    assert held(pipeline, day) == "wrong authors"

    redone = operator.trigger(
        "undo_day", {"day": str(day), "action": "redo", "dry_run": False, "reason": "they were right"}
    )
    operator.wait(redone, RUN_DEADLINE_S)
    assert shown(pipeline, day) == after
    assert held(pipeline, day) is None


def test_a_build_that_takes_a_row_from_readers_waits_for_a_person(pipeline, operator, today):
    day = today.before(6)  # no other test posts to it
    post(pipeline, "member", member(9, nickname="구름", createdAt=noon(day.before(1)), modifiedAt=noon(day.before(1))))
    post_board(pipeline, day, board_id=21, member_id=9)
    served_from_nowhere(pipeline, day, board_id=20)

    def waiting_run():
        run = operator.trigger("reprocess_days", reprocessing(day, dry_run=False))
        wait_for_question(pipeline, operator, run)
        assert [row[0] for row in shown(pipeline, day)] == [20]
        return run

    tried = operator.trigger("reprocess_days", reprocessing(day, dry_run=True))
    operator.wait(tried, RUN_DEADLINE_S)
    assert operator.result(tried, "summary")[str(day)]["result"] == "would wait until a person approves it"

    rejected = waiting_run()
    question = approval(pipeline, "viewer", rejected).json()
    assert question["subject"] == f"Publish day {day}?"
    assert "1 of them take a row from readers" in question["body"]
    assert "key 20" in question["body"]
    assert approval(pipeline, "viewer", rejected, "Approve").status_code == 403
    assert approval(pipeline, "operator", rejected, "Reject").is_success
    operator.wait(rejected, RUN_DEADLINE_S)
    states = operator.task_states(rejected)
    assert {states[f"rebuild_day.{name}[0]"] for name in ("approve", "publish", "certify", "cover")} == {"skipped"}
    assert [row[0] for row in shown(pipeline, day)] == [20]

    approved = waiting_run()
    assert approval(pipeline, "operator", approved, "Approve").is_success
    with pytest.raises(RunFailed, match="unexplained"):  # published, and not certified
        operator.wait(approved, RUN_DEADLINE_S)
    assert operator.task_states(approved)["summary"] == "success"
    result = operator.result(approved, "summary")[str(day)]
    assert result["result"].startswith("published as generation")
    assert (result["rows"], result["certified"], result["corrections"]["unexplained"]) == (1, False, 1)
    assert [row[0] for row in shown(pipeline, day)] == [21]
    ((made_by,),) = rows(pipeline.settings, "SELECT made_by FROM publication WHERE day = %s", (day.date,))
    assert made_by.endswith(", approved by operator")


def test_another_pipeline_has_its_own_night_and_its_own_days(pipeline, operator):
    orders = pipeline.settings_of("order_detail")
    today = Day.of(dt.datetime.now(dt.UTC), orders.timezone)
    day = today.before(3)
    night, *_ = nights(operator, today, "nightly_rebuild_order_detail")
    assert operator.wait(night, RUN_DEADLINE_S).state == "success"
    with pipeline.gateway.client() as gateway:
        gateway.post_event("customer", customer(1, changedAt=noon(day.before(1))))
        gateway.post_event("order", order(10, orderedAt=noon(day), changedAt=noon(day)))
    take_everything(orders)

    form = reprocessing(day, dry_run=False)
    operator.wait(operator.trigger("reprocess_days_order_detail", form), RUN_DEADLINE_S)

    assert rows(orders, "SELECT order_number, customer_name, finality FROM order_detail") == [
        (10, "Customer 1", "final")
    ]
    assert rows(orders, "SELECT day, status FROM day_status WHERE status <> 'provisional'") == [(day.date, "certified")]


def test_one_alert_while_a_fault_lasts_and_an_all_clear(pipeline, operator, webhook):
    def watch():
        """Run it by hand; its own schedule may run it too."""
        run = operator.wait(operator.trigger("watch_pipeline", {}), RUN_DEADLINE_S)
        bodies = [body for _, _, body in webhook.calls if body["name"] == "gateway_silent"]
        return run, [(body["pipeline"], body["event"]) for body in bodies]

    assert watch()[1] == []
    pipeline.gateway.kill()
    try:
        run, told = watch()
        assert told == [("board_detail", "opened")]
        assert any("gateway_silent" in line for line in operator.task_log(run, "watch"))
        assert watch()[1] == [("board_detail", "opened")]
    finally:
        pipeline.gateway.start()
    assert watch()[1] == [("board_detail", "opened"), ("board_detail", "closed")]

    for text in operator.task_log(run, "watch"):
        assert "/hooks/secret" not in text


def test_a_paused_dag_is_an_alert(pipeline, operator):
    def paused():
        return rows(pipeline.settings, "SELECT subject FROM alert WHERE name = 'dag_paused' AND closed_at IS NULL")

    operator.pause("undo_day")
    try:
        operator.wait(operator.trigger("watch_pipeline", {}), RUN_DEADLINE_S)
        assert paused() == [("undo_day",)]
    finally:
        operator.unpause("undo_day")
    operator.wait(operator.trigger("watch_pipeline", {}), RUN_DEADLINE_S)
    assert paused() == []


def test_a_day_that_is_not_over_is_refused_at_once_with_the_remedy(pipeline, operator, today):
    tomorrow = today.before(-1)  # today may be over by now
    with pytest.raises(RunFailed, match=f"to={tomorrow}: {DAY_NOT_OVER.format(today.zone)}"):
        operator.wait(operator.trigger("reprocess_days", reprocessing(tomorrow)), RUN_DEADLINE_S)


def test_form_is_checked_before_a_run_starts(operator):
    with pytest.raises(AirflowRefused, match="reason"):
        operator.trigger("reprocess_days", {"from": "2026-11-20", "to": "2026-11-20", "reason": "no"})


def test_nightly_run_by_hand_is_refused_since_it_has_no_day(operator):
    with pytest.raises(AirflowRefused, match=NO_DAY):
        operator.trigger("nightly_rebuild", {})


def test_viewer_may_look_but_not_run(pipeline):
    with pipeline.airflow("viewer") as viewer:
        viewer.wait_for_dag("reprocess_days")
        with pytest.raises(AirflowRefused, match="Forbidden"):
            viewer.trigger("reprocess_days", {"from": "2026-11-20", "to": "2026-11-20", "reason": "may I"})


class TestIntegrityPage:
    def test_refuses_who_has_no_token(self, pipeline):
        for path in ("", "order_detail/"):
            assert HTTP.get(f"{pipeline.airflow_url}/integrity/{path}").status_code == 401

    @pytest.mark.parametrize(("path", "name"), [("", "board_detail"), ("order_detail/", "order_detail")])
    def test_shows_the_days_of_each_pipeline_to_a_viewer(self, pipeline, path, name):
        with pipeline.airflow("viewer") as viewer:
            page = HTTP.get(f"{pipeline.airflow_url}/integrity/{path}", headers=viewer.authorization())

        assert page.status_code == 200
        assert f"<h1>Integrity: {name}</h1>" in page.text

    def test_no_other_site_frames_a_page_of_airflows(self, pipeline):
        for path in ("/", "/api/v2/monitor/health", "/auth/login"):
            policy = HTTP.get(f"{pipeline.airflow_url}{path}").headers.get("Content-Security-Policy", "")
            assert "frame-ancestors 'self'" in policy, path

    def test_is_in_the_navigation(self, pipeline):
        with pipeline.airflow("admin") as admin:
            plugins = HTTP.get(f"{pipeline.airflow_url}/api/v2/plugins", headers=admin.authorization()).json()[
                "plugins"
            ]

        views = [view for plugin in plugins for view in plugin["external_views"]]
        assert [(view["name"], view["href"]) for view in views] == [
            ("Integrity", "/integrity/"),
            ("Integrity order_detail", "/integrity/order_detail/"),
        ]
