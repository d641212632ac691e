"""A build that a person has to approve: when it waits, what the answer leads to."""

import datetime as dt
import re
from types import SimpleNamespace

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput
from hypothesis import given
from hypothesis import strategies as st

from include.airflow_support import steps
from include.airflow_support.tasks import PublishApproval, fenced
from include.integrity.days.comparison import AskedBefore

SEEN = {"generation_id": 7, "digest": "d41d8cd98f00b204e9800998ecf8427e"}


@pytest.fixture
def task():
    with DAG("approvals"):
        return PublishApproval(
            task_id="approve",
            pipeline="order_detail",
            day="2026-11-20",
            build="a-run",
            response_timeout=dt.timedelta(hours=12),
        )


@pytest.fixture
def asked(monkeypatch):
    """The questions that a person was asked."""
    questions = []
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **values: questions.append(values))
    return questions


def context(**params):
    return {"params": params, "task_instance": SimpleNamespace(id="ti", map_index=0)}


def answered(*options, user=None, **event):
    return {"chosen_options": [*options], "params_input": {}, "responded_at": dt.datetime.now(dt.UTC),
            "responded_by_user": user, **event}  # fmt: skip


def test_a_build_that_needs_no_person_goes_on(task, asked, monkeypatch):
    monkeypatch.setattr(steps, "approval_question", lambda *_: (None, SEEN))

    assert task.execute(context()) == {"approved_by": None, "seen": SEEN, "would_ask": False}
    assert asked == []


@pytest.mark.parametrize(("params", "would_ask"), [({"dry_run": True}, True), ({"accept_vanishing": True}, False)])
def test_nobody_is_asked_where_nothing_is_published_or_the_form_said_yes(task, asked, monkeypatch, params, would_ask):
    monkeypatch.setattr(steps, "needs_approval", lambda *_: True)
    monkeypatch.setattr(steps, "approval_question", lambda *_: ("2 differences are unexplained", SEEN))

    assert task.execute(context(**params)) == {"approved_by": None, "seen": None, "would_ask": would_ask}
    assert asked == []


def test_a_build_that_needs_a_person_waits_without_a_slot_and_shows_the_differences(task, asked, monkeypatch):
    monkeypatch.setattr(steps, "approval_question", lambda *given: (f"2 differences of {given}", SEEN))

    with pytest.raises(TaskAwaitingInput) as waiting:
        task.execute(context(dry_run=False))

    assert waiting.value.timeout == dt.timedelta(hours=12)
    assert waiting.value.kwargs == {"seen": SEEN}
    (question,) = asked
    assert question["options"] == ["Approve", "Reject"]
    assert "2 differences of ('order_detail', '2026-11-20', 'a-run')" in question["body"]


def test_an_approval_names_the_person_and_what_the_question_was_about(task):
    answer = answered("Approve", user={"id": "1", "name": "mina"})

    assert task.execute_complete(context(), answer, SEEN) == {
        "approved_by": "mina", "seen": SEEN, "would_ask": True,
    }  # fmt: skip


def test_a_rejection_skips_the_day(task):
    with pytest.raises(AirflowSkipException, match="mina rejected the build; day 2026-11-20 is unchanged"):
        task.execute_complete(context(), answered("Reject", user={"id": "1", "name": "mina"}), SEEN)


def test_no_answer_in_time_fails_and_says_how_to_be_asked_again(task):
    event = answered(error="no response", error_type="timeout")

    with pytest.raises(
        AirflowFailException, match=r"nobody approved or rejected day 2026-11-20 within 12:00:00.*Clear"
    ):
        task.execute_complete(context(), event, SEEN)


def test_a_question_that_airflow_would_not_show_is_not_asked(task, asked, monkeypatch):
    def refuse(*_):
        raise AskedBefore(day="2026-11-20")

    monkeypatch.setattr(steps, "approval_question", refuse)
    with pytest.raises(AskedBefore, match="Airflow would still show that question: reprocess the day"):
        task.execute(context())
    assert asked == []


@given(st.text())
def test_a_question_is_shown_as_it_is_whatever_the_data_hold(text):
    first, *_, last = lines = fenced(text).split("\n")

    assert re.fullmatch("~{3,}", first)
    assert first == last
    assert "\n".join(lines[1:-1]) == text
    assert not [line for line in re.split(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text) if first in line]
