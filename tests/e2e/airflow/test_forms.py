"""Forms by hand against a live Airflow: what a dry run tells, what a run does, and values that are no one's friends."""

import datetime as dt
import json

import pytest

from demo.airflow_client import AirflowRefused, RunFailed
from include.database.sessions import connect
from tests.fakes.events import member
from tests.support.airflow import RUN_DEADLINE_S, held, noon, post, post_board, returned
from tests.support.broker import Broker
from tests.support.http import HTTP
from tests.support.messages import KEYS_DIFFER, NO_REASON
from tests.support.pipeline import rows
from tests.support.publication import publish
from tests.support.serving import build, row

pytestmark = pytest.mark.timeout(600)  # a Spark job takes 15 s here, and minutes on a busy machine

HOSTILE = "'; DROP TABLE site.member; -- $(touch x) --conf a=b {{ 7 * 7 }} 하늘 😀"


@pytest.fixture
def run(operator):
    """Start a form's run, and wait for its end."""

    def run_(dag_id, **form):
        operator.wait_for_dag(dag_id)
        return operator.wait(operator.trigger(dag_id, form), RUN_DEADLINE_S)

    return run_


def test_the_stores_are_drained_by_hand(pipeline, run):
    for dag_id in ("replay_fallback", "replay_fallback_order_detail"):
        assert returned(pipeline, run(dag_id), "replay_fallback") == {"sent": 0, "left": 0, "refused": 0}


def test_a_row_without_its_record_is_counted_and_then_published(pipeline, run, operator):
    saved_at = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    with connect(pipeline.settings.database, "gateway") as connection, connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO site.member (id, nickname, created_at, modified_at) VALUES (400, '별', %s, %s)",
            (saved_at, saved_at),
        )

    def records():
        messages = Broker(pipeline.settings.kafka).messages("member")
        return [json.loads(message.value()) for message in messages if message.key() == b"400"]

    counted = run("reconcile_sources", reason=HOSTILE)
    assert returned(pipeline, counted, "reconcile")[0] == {
        "topic": "member", "unpublished": 1, "produced": 0, "refused": 0, "ahead": 0,
        "written_back": 0, "without_record": 0, "with_tombstone": 0, "given_twice": 0,
    }  # fmt: skip
    assert any(f"reason: {HOSTILE}" in line for line in operator.task_log(counted, "reconcile"))
    assert any("not published: member 400" in line for line in operator.task_log(counted, "reconcile"))
    assert records() == []

    published = run("reconcile_sources", reason="a gateway died", dry_run=False)
    assert returned(pipeline, published, "reconcile")[0]["produced"] == 1
    assert [(value["id"], value["nickname"]) for value in records()] == [(400, "별")]

    with pytest.raises(RunFailed, match=f"reason='': {NO_REASON}"):
        run("reconcile_sources")


def test_an_undo_is_shown_before_it_is_made_and_keeps_its_reason_as_it_is(pipeline, run, today):
    day = today.before(12)
    at = dt.datetime.fromisoformat(noon(day))
    made = {"created_at": at, "modified_at": at, "day": day.date}
    for number, boards in enumerate(([401], [401, 402])):
        build(pipeline.settings, [row(board, 0, **made) for board in boards], 0, f"forms-{number}", day=day)
        publish(pipeline.settings, day, f"forms-{number}", accept_vanishing=True, reason="a test")
    ((shown,),) = rows(pipeline.settings, "SELECT generation_id FROM day_publication WHERE day = %s", (day.date,))

    seen = returned(pipeline, run("undo_day", day=str(day), reason=HOSTILE), "undo")
    assert (seen["before"]["generation_id"], seen["before"]["row_count"]) == (shown, 2)
    assert (seen["after"]["run_id"], seen["after"]["row_count"]) == ("forms-0", 1)
    assert seen["after"]["content_hash"] != seen["before"]["content_hash"]
    assert seen["after"]["built_at"]
    assert held(pipeline, day) is None

    run("undo_day", day=str(day), reason=HOSTILE, dry_run=False)
    assert held(pipeline, day) == HOSTILE
    history = rows(pipeline.settings, "SELECT action, reason FROM publication WHERE day = %s ORDER BY id", (day.date,))
    assert history[2:] == [("undo", HOSTILE)]


def test_a_person_is_counted_and_then_forgotten(pipeline, run, operator, today):
    before = noon(today.before(13))
    post(pipeline, "member", member(450, nickname="구름", createdAt=before, modifiedAt=before))
    post_board(pipeline, today.before(12), board_id=450, member_id=450)

    def forgotten():
        return rows(pipeline.settings, "SELECT reason FROM forgotten_key")

    with pytest.raises(RunFailed, match=f"key_again='451': key=450 {KEYS_DIFFER}"):
        run("forget_member", key="450", key_again="451", reason="request 12", dry_run=False)
    counted = run("forget_member", key="450", key_again="450", reason=HOSTILE)
    assert any("would be removed" in line for line in operator.task_log(counted, "forget"))
    assert forgotten() == []

    run("forget_member", key="450", key_again="450", reason=HOSTILE, dry_run=False)
    assert forgotten() == [(HOSTILE,)]
    values = [m.value() for m in Broker(pipeline.settings.kafka).messages("member") if m.key() == b"450"]
    assert values[-1] is None


UNDO = '{"day": "2026-11-20", "reason": %s}'
FORGET = '{"key": %s, "key_again": "7", "reason": "request 12"}'


@pytest.mark.parametrize(
    ("dag_id", "conf"),
    [
        ("undo_day", UNDO % '"a\\u0000b"'),
        ("undo_day", UNDO % '"a\\nb"'),
        ("undo_day", UNDO % '"a\\ud800b"'),
        ("undo_day", UNDO % f'"{"x" * 5000}"'),
        ("undo_day", UNDO % '{"a": 1}'),
        ("undo_day", '{"day": "2026-11-20; --", "reason": "why"}'),
        ("forget_member", FORGET % "7"),
        ("forget_member", FORGET % f'"{"9" * 5000}"'),
        ("forget_member", FORGET % '"7; --"'),
        ("forget_member", FORGET % "1e400"),
        ("forget_member", FORGET % "true"),
        ("reconcile_sources", '{"reason": "why", "since": "$(id)"}'),
        ("replay_fallback", '"; --"'),
    ],
)
def test_a_wrong_value_is_refused_before_a_run_is_made(pipeline, operator, dag_id, conf):
    operator.wait_for_dag(dag_id)
    address = f"{pipeline.airflow_url}/api/v2/dags/{dag_id}/dagRuns"
    headers = {**operator.authorization(), "Content-Type": "application/json"}
    before = HTTP.get(address, headers=headers).json()["total_entries"]

    answer = HTTP.post(address, headers=headers, content=f'{{"logical_date": null, "conf": {conf}}}')

    assert 400 <= answer.status_code < 500, answer.text
    assert HTTP.get(address, headers=headers).json()["total_entries"] == before


def test_a_refusal_names_the_field_the_value_and_the_remedy(operator):
    with pytest.raises(AirflowRefused) as refused:
        operator.trigger("undo_day", {"day": "20.11.2026", "reason": "why"})
    for part in ("param day", "'20.11.2026' is not a 'date'"):
        assert part in str(refused.value)
