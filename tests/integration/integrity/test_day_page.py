"""The page of a day, read from a real PostgreSQL with the rights of its role."""

import dataclasses
import socket
from functools import partial

import httpx
import psycopg2
import pytest
from fastapi.testclient import TestClient

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.integrity.days.comparison import verify
from include.integrity.days.publication import undo
from include.integrity.pages import app as page
from include.integrity.pages.app import READ, create_app
from include.integrity.pages.day_page import load_day, load_difference
from include.integrity.pages.page_model import load_rows, read_state
from include.runtime.kafka_connection import KafkaConnection
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, exclude, opened_store, row, serve


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "day_page", tmp_path)


@pytest.fixture
def day(settings):
    """A day whose rebuild changed a nickname and a phone number, and added a post; certified, then undone."""
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1, nickname="저녁", phone="010-1111-1111"), row(2, 2)])
    finally:
        store.close()
    changed = row(1, 1, nickname="아침", phone="010-2222-2222", table_offset=4)
    generation = build(settings, [changed, row(2, 2), row(3, 3)], cut=9, run_id="night", raw_distinct=4)
    rows(settings, "UPDATE generation SET rejected_count = 1 WHERE id = %s", (generation,))
    exclude(settings, generation, "rejected", board_id=9)
    verify(settings, DAY, "night")
    publish(settings, DAY, "night", made_by="a test", reason="the night")
    return generation


def test_a_day_has_its_balance_corrections_rejects_generations_and_history(settings, day):
    assert certify_alone(settings, DAY).reason is None

    page = load_day(settings, DAY)

    assert page.row.status.status == "certified"
    terms = {term.name: term.value for term in page.terms}
    assert [terms[name] for name in ("raw_distinct", "rows", "pending", "rejected")] == ["4", "3", "0", "1"]
    assert [(each.kind, each.key) for each in page.corrections] == [("member_version_changed", 1), ("missing", 3)]
    assert [(each.kind, each.reason, each.count) for each in page.left_out] == [("rejected", "a test says so", 1)]
    assert [(each.generation_id, each.run_id, each.is_shown) for each in page.generations] == [(day, "night", True)]
    assert [(each.action, each.made_by, each.reason) for each in page.history] == [("publish", "a test", "the night")]


def test_personal_values_are_hidden_and_their_change_is_told(settings, day):
    changed = load_day(settings, DAY).corrections[0]

    assert set(changed.changed) == {"nickname", "phone", "table_offset"}
    assert (changed.before["phone"], changed.after["phone"]) == ("(hidden)", "(hidden)")
    assert (changed.before["nickname"], changed.after["nickname"]) == ("저녁", "아침")
    assert "010-" not in str(rows(settings, "SELECT * FROM day_correction", role="integrity"))


def test_the_role_of_the_page_reads_no_row_itself(settings, day):
    for table in ("detail_correction", "detail_final", "detail_live", "detail_covered", "board_detail", "reject"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            rows(settings, f"SELECT * FROM {table}", role="integrity")
    personal = settings.pipeline.personal_columns
    assert personal
    readable = rows(
        settings,
        "SELECT table_name, column_name FROM information_schema.column_privileges"
        " WHERE grantee = 'integrity' AND column_name = ANY (%s)",
        ([*personal, "title", "body", "nickname", "value"],),
        role="integrity",
    )
    assert readable == [("day_certificate", "value")]  # a term's count


def test_two_generations_differ_by_what_was_added_removed_and_changed(settings, day):
    again = build(
        settings, [row(2, 2, title="another"), row(3, 3, phone="010-3333-3333"), *(row(n, n) for n in range(10, 40))],
        cut=50, run_id="again",
    )  # fmt: skip
    difference = load_difference(settings, DAY, day, again)

    assert difference.counts == {"added": 30, "changed": 2, "removed": 1}
    assert len(difference.rows) == 20
    found = {each.key: each for each in difference.rows}
    assert found[1].after is None
    assert found[1].before["phone"] == "(hidden)"
    assert (list(found[2].changed), found[2].before["title"], found[2].after["title"]) == (["title"], "v2", "another")
    assert (list(found[3].changed), found[3].before["phone"], found[3].after["phone"]) == (["phone"], None, "(hidden)")
    assert list(found[10].after)[:2] == ["board_id", "member_id"]
    assert "010-" not in str(difference)


def test_a_generation_does_not_differ_from_itself(settings, day):
    assert load_difference(settings, DAY, day, day).rows == []


def test_without_the_definition_no_difference_is_shown(settings, day):
    rows(settings, "DELETE FROM pipeline_setting WHERE name = 'definition'")

    assert load_difference(settings, DAY, day, 0).rows == []


def test_nobody_else_may_compare_generations(settings, day):
    for role in ("analyst", "gateway", "stream"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            rows(settings, f"SELECT * FROM generation_difference('{DAY}', 1, 2, 20)", role=role)


def test_another_pipeline_compares_its_own_generations(postgres, tmp_path):
    orders = migrated(None, postgres, "orders_page", tmp_path, "order_detail")

    assert load_difference(orders, Day.parse("2026-11-20", orders.timezone), 1, 2).counts == {}
    assert load_rows(orders, "integrity") == []


def test_the_state_is_read_as_the_pages_role_and_judged_as_by_the_watch(settings, day):
    watched(settings)
    state = read_state(settings, 5)

    assert {name: (seen.progress.lag_records, seen.progress.batch_id) for name, seen in state.queries.items()} == {
        "join": (7, 3), "serve": (7, 3),
    }  # fmt: skip
    assert [one.name for one in state.findings["stream"]] == ["stream_silent"]
    assert state.findings["stream"][0].subject == "serve"
    assert [(one.name, one.subject, one.severity) for one in state.alerts] == [
        ("day_held", "2026-11-20", "critical"), ("dag_paused", "x", "warning"),
    ]  # fmt: skip
    assert [*state.gateways.values()] == ["GATEWAY_ADMIN_TOKEN is not set; asking a gateway for its backlog needs it"]
    assert state.broker is None  # there is none
    assert state.waiting_days == 0


def test_the_state_counts_days_that_nights_have_to_rebuild(settings):
    yesterday = Day.of(SystemClock().now(), settings.timezone).before()
    for age, held in ((-1, None), (0, None), (1, None), (2, "a person looks"), (40, None)):
        rows(settings, "INSERT INTO day_publication (day, held_reason) VALUES (%s, %s)",
             (yesterday.before(age).date, held))  # fmt: skip
    for age, cause in ((3, "late board"), (4, "unread board"), (5, None)):
        published = yesterday.before(age)
        build(settings, [row(age, 0, day=published.date, created_at=published.start)], cut=1, run_id="r", day=published)
        publish(settings, published, "r")
        if cause:
            rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, %s, 1)", (published.date, cause))

    assert read_state(settings, 5).waiting_days == 3  # two that were never published, and one that is dirty


def watched(settings):
    for query, age_s in (("join", 1), ("serve", 3600)):
        rows(settings, "INSERT INTO stream_progress (query, driver_id, batch_id, lag_records, lag_s, heartbeat_at)"
             " VALUES (%s, 'd', 3, 7, 0.5, now() - make_interval(secs => %s))", (query, age_s))  # fmt: skip
    rows(settings, "INSERT INTO alert (name, subject, severity, message, runbook, since, closed_at) VALUES"
         " ('dag_paused', 'x', 'warning', 'm', 'alerts', now(), NULL),"
         " ('day_held', '2026-11-20', 'critical', 'm', 'undo', now(), NULL),"
         " ('day_held', '2026-11-19', 'critical', 'm', 'undo', now(), now())")  # fmt: skip


def test_servers_that_are_gone_or_frozen_leave_a_page_that_says_so(settings, day):
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        lost = dataclasses.replace(
            settings,
            database=dataclasses.replace(settings.database, port=port),
            kafka=dataclasses.replace(settings.kafka, connection=KafkaConnection(f"127.0.0.1:{port}")),
            gateway=dataclasses.replace(settings.gateway, url=f"http://127.0.0.1:{port}", admin_token="t"),
        )
        sources = dataclasses.replace(READ, state=partial(read_state, timeout_s=10.0))
        pages = TestClient(create_app(lambda: None, ["board_detail"], lambda _: lost, sources=sources))
        now = pages.get("/board_detail/state")
        whole = pages.get("/")

    assert now.status_code == 200
    assert now.text.count(">No answer<") == 3  # the gateways' part names those that do not answer
    assert "no answer within" in now.text
    assert whole.status_code == 503
    assert "The database does not answer." in whole.text
    assert whole.text.count(">No answer<") == 3


def test_without_the_definition_no_correction_is_shown(settings, day):
    rows(settings, "DELETE FROM pipeline_setting WHERE name = 'definition'")

    assert rows(settings, "SELECT count(*) FROM day_correction", role="integrity") == [(0,)]


def test_an_undone_day_shows_the_streams_rows_and_keeps_its_generation(settings, day):
    undo(settings, DAY, reason="wrong", made_by="on-call")

    page = load_day(settings, DAY)

    assert (page.shown, page.terms, page.corrections) == (None, [], [])
    assert [(each.generation_id, each.is_shown) for each in page.generations] == [(day, False)]
    assert [each.action for each in page.history] == ["publish", "undo"]


def test_a_day_of_which_nothing_is_known(settings):
    assert load_day(settings, Day.parse("2020-01-01", "Asia/Seoul")) is None


def test_the_pages_show_it(settings, day, monkeypatch):
    monkeypatch.setattr(page, "FIND_LIMITS", page.FIND_LIMITS._replace(place_s=0.5))  # there is no Kafka
    pages = TestClient(create_app(lambda: None, ["board_detail"], lambda _: settings))
    answers: list[httpx.Response] = [
        pages.get(path)
        for path in ("/", f"/board_detail/days/{DAY}", f"/board_detail/days/{DAY}?from={day}&to={day}",
                     "/board_detail/find?q=1", "/board_detail/find?q=e1")
    ]  # fmt: skip

    assert [answer.status_code for answer in answers] == [200] * 5
    assert "아침" in answers[1].text
    assert "The two have the same rows." in answers[2].text
    for found in answers[3:]:
        assert f"board 1 is shown in day {DAY}, from generation {day}" in found.text
        assert "phone: (hidden)" in found.text
    assert "010-" not in "".join(answer.text for answer in answers)
