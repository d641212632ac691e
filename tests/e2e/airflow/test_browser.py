"""The Integrity pages as each user of Airflow sees them: a real Chromium, a real Airflow, a real database."""

import re
from contextlib import closing
from dataclasses import asdict

import httpx
import psycopg2
import pytest

from stack.jobs import AIRFLOW_DATABASE
from tests.fakes.events import board, member
from tests.support.airflow import (
    RUN_DEADLINE_S,
    backfill,
    held,
    noon,
    post,
    post_board,
    reprocessing,
    served_from_nowhere,
    shown,
    status,
    wait_for_question,
)
from tests.support.browser import STATE_MS, integrity, logged_in, started_run, violations
from tests.support.http import HTTP
from tests.support.pipeline import rows

pytestmark = pytest.mark.timeout(600)  # a Spark job takes 15 s here, and minutes on a busy machine

HOSTILE = '<img src=x onerror="window.top.hacked = 1"><script>window.top.hacked = 1</script>{{7*7}}'
USERS = ("admin", "operator", "viewer")


@pytest.fixture(scope="module")
def day(browser, pipeline, today):
    """A certified day of three posts; a fourth waits for its author, and a title is hostile."""

    day = today.before(9)
    before = noon(day.before(1))
    post(pipeline, "member", member(17, nickname="하늘", phone="010-1234-5678", createdAt=before, modifiedAt=before))
    for board_id, author, title in ((201, 17, "first"), (202, 17, HOSTILE), (203, 17, "third"), (204, 1404, "waits")):
        value = board(board_id, author, title=title, createdAt=noon(day), modifiedAt=noon(day))
        post(pipeline, "board", value)
    with pipeline.airflow("operator") as operator:
        operator.wait_for_dag("nightly_rebuild")
        operator.wait_for_dag("reprocess_days")
        operator.wait_for_dag("undo_day")
        backfill(operator, day)
    assert status(pipeline, day)[:3] == ("certified", 3, 1)
    return day


@pytest.fixture
def open_as(browser, pipeline):
    """Airflow's first page as a user sees it."""

    def open_(user, **options):
        return logged_in(browser, pipeline.airflow_url, user, pipeline.variables[f"AIRFLOW_{user.upper()}_PASSWORD"],
                         **options)  # fmt: skip

    return open_


def open_day(page, day):
    frame = integrity(page)
    frame.get_by_role("link", name=str(day), exact=True).click()
    frame.get_by_role("heading", level=1, name=str(day)).wait_for()
    return frame


@pytest.mark.parametrize("user", USERS)
def test_each_user_reads_the_numbers_of_the_database(pipeline, day, open_as, user):
    with open_as(user) as page:
        frame = integrity(page)
        row = frame.get_by_role("row").filter(has=frame.get_by_role("link", name=str(day), exact=True))
        names = frame.locator("#days thead th").all_inner_texts()
        cells = dict(zip(names, [text.split("\n")[0] for text in row.locator("th, td").all_inner_texts()], strict=True))
        region = frame.get_by_role("region", name="Broker")
        region.get_by_text("OK", exact=True).first.wait_for(timeout=STATE_MS)
        broker = region.inner_text()

    (expected,) = rows(
        pipeline.settings,
        "SELECT row_count, pending_count, rejected_count, dirty_count, generation_id FROM day_status WHERE day = %s",
        (day.date,),
    )
    shown = [cells[name] for name in ("Rows", "Pending", "Rejected", "Arrived since", "Generation")]
    assert shown == [str(number) for number in expected]
    assert cells["Status"].endswith("certified")
    assert "OK" in broker
    assert re.search(r"board \d+ offsets kept", " ".join(broker.split()))


def test_the_page_of_a_day_has_the_balance_of_its_certificate(pipeline, day, open_as):
    with open_as("viewer") as page:
        frame = open_day(page, day)
        balance = " ".join(frame.locator(".balance").inner_text().split())
        frame.get_by_text("All terms, each with its query").click()
        frame.get_by_text("Show", exact=True).first.click()
        query = frame.locator("details[open] details[open] pre").inner_text()

    terms = dict(rows(pipeline.settings, "SELECT term, value FROM day_certificate WHERE day = %s", (day.date,)))
    assert balance == "{raw_distinct} raw = {rows} rows + {pending} pending + {rejected} rejected".format(**terms)
    assert query.startswith("SELECT")


def test_nothing_from_the_data_runs_and_no_personal_value_is_shown(day, open_as):
    with open_as("operator") as page:
        frame = open_day(page, day)
        text = frame.locator("main").inner_text()
        hacked = page.evaluate("window.hacked")

    assert HOSTILE in text
    assert hacked is None
    assert "010-1234-5678" not in text
    assert "(hidden)" in text


def test_a_viewer_is_told_to_ask_an_operator(day, open_as):
    with open_as("viewer") as page:
        frame = integrity(page)
        frame.get_by_role("button", name=f"Dry run of {day}").click()
        frame.get_by_text("You have no right to start runs. Ask an operator.").wait_for()


def test_a_run_needs_a_reason(day, open_as):
    with open_as("operator") as page:
        frame = open_day(page, day)
        frame.get_by_role("button", name="Rebuild and publish").click()

        assert frame.get_by_label("Reason").evaluate("field => field.validity.valueMissing")
        assert frame.get_by_role("status").inner_text() == ""


def test_an_operator_starts_a_dry_run_which_changes_nothing(pipeline, day, open_as):
    before = status(pipeline, day)
    with open_as("operator") as page:
        frame = open_day(page, day)
        frame.get_by_label("Reason").fill("is it <right>?")
        frame.get_by_role("button", name="Dry run").click()
        run = started_run(frame, "reprocess_days")
        frame.get_by_role("link", name="Watch it").click()
        page.wait_for_url(re.compile(r"/dags/reprocess_days/runs/"))

    with pipeline.airflow("operator") as operator:
        finished = operator.wait(run, RUN_DEADLINE_S)
        assert operator.task_states(finished)["rebuild_day.publish[0]"] == "skipped"
    assert status(pipeline, day) == before


def test_an_operator_undoes_and_redoes_a_day(pipeline, day, open_as):
    for button, reason, is_held in (("Undo", "wrong authors", "wrong authors"), ("Redo", "they were right", None)):
        with open_as("operator") as page:
            frame = open_day(page, day)
            frame.get_by_label("Reason").fill(reason)
            frame.get_by_role("button", name=button).click()
            run = started_run(frame, "undo_day")
        with pipeline.airflow("operator") as operator:
            operator.wait(run, RUN_DEADLINE_S)
        assert held(pipeline, day) == is_held
        with open_as("operator") as page:
            history = open_day(page, day).get_by_role("table").last.get_by_role("row").nth(1).inner_text()
        assert button.lower() in history
        assert reason in history
        assert "operator · undo_day" in history


@pytest.fixture
def views(pipeline, day):
    """The addresses of all views, each with content."""
    kept = rows(
        pipeline.settings, "SELECT min(id), max(id) FROM generation WHERE day = %s AND status <> 'discarded'",
        (day.date,),
    )  # fmt: skip
    compared = "from={}&to={}".format(*kept[0])
    paths = ("", f"board_detail/days/{day}?{compared}", "board_detail/find?q=201", "order_detail/", "?lang=ko")
    return [f"{pipeline.airflow_url}/integrity/{path}" for path in paths]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_findings(views, open_as, scheme):
    with open_as("viewer", color_scheme=scheme) as page:
        for address in views:
            page.goto(address)
            for summary in page.locator("summary").all():
                summary.evaluate("summary => { summary.parentElement.open = true; }")
            assert violations(page) == [], address


def test_a_phone_scrolls_tables_and_not_the_page(views, open_as):
    with open_as("viewer", viewport={"width": 390, "height": 800}) as page:
        for address in views:
            page.goto(address)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), address


def test_a_frame_has_airflows_theme_and_the_language_that_was_chosen(day, open_as):
    with open_as("viewer", color_scheme="light") as page:
        frame = integrity(page)
        colors = []
        for theme in ("dark", "light"):
            page.evaluate("theme => { document.documentElement.className = theme; }", theme)
            frame.locator(f":root[data-theme={theme}]").wait_for()
            colors.append(frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))
        frame.get_by_role("link", name="한국어").click()
        frame.get_by_role("heading", name="현재 상태").wait_for()
        page.goto(page.url)
        frame.get_by_role("heading", name="현재 상태").wait_for()
    assert colors == ["rgb(17, 20, 24)", "rgb(255, 255, 255)"]


def test_days_are_filtered_by_keyboard_without_a_request(day, open_as):
    with open_as("viewer") as page:
        frame = integrity(page)
        shown, number = frame.locator("#days tbody tr:visible"), frame.locator("#filter output")
        before, requests = shown.count(), []
        page.on("request", lambda request: requests.append(request.url))
        row = frame.get_by_role("row").filter(has=frame.get_by_role("link", name=str(day), exact=True))
        frame.locator(f"input[value={row.get_attribute('data-kind')}]").focus()
        page.keyboard.press("Space")
        frame.get_by_role("link", name=str(day), exact=True).wait_for(state="hidden")
        after, told = shown.count(), number.inner_text()
        page.keyboard.press("Space")
        frame.get_by_role("link", name=str(day), exact=True).wait_for()
        assert [url for url in requests if "/integrity/" in url and not url.endswith("/state")] == []
    assert told == f"{after} of {before} days"
    assert after < before


def test_a_post_is_found_and_what_is_typed_is_text(day, open_as):
    with open_as("viewer") as page:
        frame = integrity(page)
        frame.get_by_role("link", name="Find a record").click()
        frame.get_by_label("Id, or event id").fill("201")
        page.keyboard.press("Enter")
        verdict = frame.locator(".verdict").inner_text()
        way = frame.get_by_role("region", name="Places of the record").inner_text()
        frame.get_by_label("Id, or event id").fill(HOSTILE)
        frame.get_by_role("button", name="Find").click()
        frame.get_by_text("left no trace").wait_for()
        hacked, text = page.evaluate("window.hacked"), frame.locator("main").inner_text()
    assert verdict.startswith(f"board 201 is shown in day {day}, from generation ")
    assert "accepted by the gateway" in way
    assert "010-1234-5678" not in way
    assert hacked is None
    assert f"event {HOSTILE}" in text


def leave_questions(pipeline, run, ended, count):
    """Questions older than the run's own, of tasks of another run that failed: Airflow keeps them without an answer."""
    params = {**asdict(run), "ended_dag": ended.dag_id, "ended": ended.run_id, "count": count}
    connection = psycopg2.connect(pipeline.postgres.superuser_dsn(AIRFLOW_DATABASE))
    with closing(connection), connection, connection.cursor() as cursor:
        cursor.execute(_LEAVE_QUESTIONS, params)
        assert cursor.rowcount == count


_LEAVE_QUESTIONS = """
WITH asking AS (
    SELECT t AS task FROM task_instance t JOIN hitl_detail h ON h.ti_id = t.id
     WHERE t.dag_id = %(dag_id)s AND t.run_id = %(run_id)s
), failed AS (
    INSERT INTO task_instance
    SELECT (jsonb_populate_record(task, jsonb_build_object(
               'id', gen_random_uuid(), 'dag_id', %(ended_dag)s, 'run_id', %(ended)s, 'task_id', 'asked',
               'map_index', number, 'state', 'failed'))).*
      FROM asking, generate_series(1, %(count)s) number
    RETURNING id
)
INSERT INTO hitl_detail
SELECT (jsonb_populate_record(
           h, jsonb_build_object('ti_id', failed.id, 'created_at', h.created_at - interval '1 day'))).*
  FROM hitl_detail h JOIN asking ON (asking.task).id = h.ti_id, failed
"""


def test_a_build_that_waits_is_rejected_on_the_page_of_its_day(pipeline, day, today, open_as):
    earlier, day = day, today.before(8)
    before = noon(day.before(1))
    post(pipeline, "member", member(18, nickname="mina", createdAt=before, modifiedAt=before))
    post_board(pipeline, day, board_id=211, member_id=18)
    served_from_nowhere(pipeline, day, board_id=210)
    with open_as("operator") as page:
        frame = open_day(page, day)
        frame.get_by_label("Reason").fill("takes a row")
        frame.get_by_role("button", name="Rebuild and publish").click()
        run = started_run(frame, "reprocess_days")
        with pipeline.airflow("operator") as operator:
            wait_for_question(pipeline, operator, run)
            (ended,) = operator.runs_of_day("rebuild_day", earlier.date)
        leave_questions(pipeline, run, ended, 104)
        with open_as("viewer") as other:
            shown_to_viewer = open_day(other, day)
            shown_to_viewer.get_by_role("button", name="Reject").click()
            shown_to_viewer.get_by_text("You have no right to decide. Ask an operator.").wait_for()
        frame.get_by_role("link", name="All days").click()
        frame.get_by_role("link", name=f"Publish day {day}?").click()
        frame.get_by_role("heading", name=f"Publish day {day}?").wait_for()
        asked = frame.get_by_role("article").inner_text()
        found = violations(page, {"include": [["iframe", "#approvals"]]})
        frame.get_by_role("button", name="Reject").click()
        frame.get_by_text("Airflow has accepted the answer: Reject.").wait_for()
    with pipeline.airflow("operator") as operator:
        operator.wait(run, RUN_DEADLINE_S)
        assert operator.task_states(run)["rebuild_day.publish[0]"] == "skipped"
    assert "1 of them take a row from readers" in asked
    assert "key 210" in asked
    assert found == []
    assert [row[0] for row in shown(pipeline, day)] == [210]


def test_only_builds_of_the_pipeline_and_the_day_are_asked_about_and_the_answer_is_the_buttons(day, open_as):
    """Answers of Airflow are made up: DAGs and tasks may have any id. It gives two questions at a time.

    While the page of the day asks, somebody answers the first one.
    """

    def question(dag_id, of_day, state="awaiting_input", **task):
        names = {"dag_id": dag_id, "dag_run_id": "run/1", "task_id": "ask", "map_index": -1, "state": state}
        return {"subject": "Publish?", "body": f"~~~\n{HOSTILE}\n~~~", "task_instance": {
            **names, "rendered_fields": {"day": of_day}, "rendered_map_index": None, **task}}  # fmt: skip

    waiting = [
        question("of_another", str(day)), question("rebuild_day", "2020-01-01"), question("rebuild_day", str(day)),
        question("of_another", str(day)), question("rebuild_day", str(day), "failed"),
    ]  # fmt: skip
    sent, begun = [], []

    def list_questions(route):
        asked = httpx.URL(route.request.url).params
        found = [each for each in waiting if each["task_instance"]["state"] in asked.get_list("state")]
        offset = int(asked["offset"])
        page = {"hitl_details": found[offset : offset + 2], "total_entries": len(found)}
        begun.extend([1] if offset == 0 else [])
        if offset == 0 and len(begun) == 2:  # the first time is that of the page of all days
            waiting.pop(0)
        route.fulfill(json=page)

    def answer(route):
        sent.append((route.request.method, httpx.URL(route.request.url).raw_path, route.request.post_data_json))
        route.fulfill(json={})

    with open_as("operator") as page:
        own = {"dags": [{"dag_id": "rebuild_day"}], "total_entries": 1}
        page.route("**/api/v2/dags?*", lambda route: route.fulfill(json=own))
        page.route("**/hitlDetails?*", list_questions)
        page.route("**/hitlDetails", answer)
        frame = open_day(page, day)
        frame.get_by_role("button", name="Approve").click()
        frame.get_by_text("Airflow has accepted the answer: Approve.").wait_for()
        asked = frame.get_by_role("article").all_inner_texts()
        hacked = page.evaluate("window.hacked")
    assert len(asked) == 1
    assert HOSTILE in asked[0]
    assert hacked is None
    path = b"/api/v2/dags/rebuild_day/dagRuns/run%2F1/taskInstances/ask/-1/hitlDetails"
    assert sent == [("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})]


def test_a_page_that_cannot_ask_which_builds_wait_says_so(day, open_as):
    with open_as("operator") as page:
        page.route("**/hitlDetails?*", lambda route: route.fulfill(status=503))
        open_day(page, day).get_by_text("Airflow did not return the builds that wait for a decision.").wait_for()


def test_the_keyboard_reaches_a_day_and_its_buttons(day, open_as, pipeline):
    with open_as("operator") as page:
        page.goto(f"{pipeline.airflow_url}/integrity/board_detail/days/{day}")
        reached = []
        for _ in range(14):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.name"))
    assert reached[:2] == ["board_detail", "order_detail"]
    assert [name for name in reached if name in ("reason", "Dry run", "Rebuild and publish", "Undo", "Redo")] == [
        "reason", "Dry run", "Rebuild and publish", "Undo", "Redo",
    ]  # fmt: skip


def test_form_values_of_the_page_are_checked_by_airflow(pipeline, day):
    """The page has no rights of its own: what it sends is what anyone can send."""
    with pipeline.airflow("viewer") as viewer:
        answer = HTTP.post(
            f"{pipeline.airflow_url}/api/v2/dags/reprocess_days/dagRuns",
            headers=viewer.authorization(),
            json={"logical_date": None, "conf": reprocessing(day)},
        )
    assert answer.status_code == 403
