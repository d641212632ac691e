"""The Integrity pages as each user of Airflow sees them: a real Chromium, a real Airflow, a real database."""

import re

import httpx
import pytest

from demo.airflow_client import Run
from tests.fakes.events import board, member
from tests.support.airflow import (
    RUN_DEADLINE_S,
    backfill,
    held,
    noon,
    post,
    reprocessing,
    status,
)
from tests.support.browser import integrity, logged_in, violations
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
    frame.get_by_role("link", name=str(day)).click()
    frame.get_by_role("heading", level=1, name=str(day)).wait_for()
    return frame


def started(frame, pipeline, dag_id) -> Run:
    """The run that the page says it has started."""
    link = frame.get_by_role("status").get_by_role("link", name="Watch it")
    link.wait_for()
    run_id = httpx.URL(link.get_attribute("href")).path.rsplit("/", 1)[-1]
    return Run(dag_id, run_id, "queued")


@pytest.mark.parametrize("user", USERS)
def test_each_user_reads_the_numbers_of_the_database(pipeline, day, open_as, user):
    with open_as(user) as page:
        frame = integrity(page)
        row = frame.get_by_role("row").filter(has=frame.get_by_role("link", name=str(day)))
        cells = dict(zip(
            frame.get_by_role("columnheader").all_inner_texts(), row.locator("th, td").all_inner_texts(), strict=True
        ))  # fmt: skip

    (expected,) = rows(
        pipeline.settings,
        "SELECT row_count, pending_count, rejected_count, dirty_count, generation_id FROM day_status WHERE day = %s",
        (day.date,),
    )
    shown = [cells[name] for name in ("Rows", "Pending", "Rejected", "Arrived since", "Generation")]
    assert shown == [str(number) for number in expected]
    assert cells["Status"].endswith("certified")


def test_the_page_of_a_day_has_the_balance_of_its_certificate(pipeline, day, open_as):
    with open_as("viewer") as page:
        frame = open_day(page, day)
        balance = frame.locator(".balance").inner_text()
        frame.get_by_text("Show", exact=True).first.click()
        query = frame.locator("details[open] pre").inner_text()

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
        frame.get_by_text("You may look, but not start runs. Ask an operator.").wait_for()


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
        run = started(frame, pipeline, "reprocess_days")
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
            run = started(frame, pipeline, "undo_day")
        with pipeline.airflow("operator") as operator:
            operator.wait(run, RUN_DEADLINE_S)
        assert held(pipeline, day) == is_held
        with open_as("operator") as page:
            history = open_day(page, day).get_by_role("table").last.get_by_role("row").nth(1).inner_text()
        assert button.lower() in history
        assert reason in history
        assert "operator, undo_day" in history


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_findings(day, open_as, pipeline, scheme):
    with open_as("viewer", color_scheme=scheme) as page:
        for path in ("", f"board_detail/days/{day}", "order_detail/"):
            page.goto(f"{pipeline.airflow_url}/integrity/{path}")
            assert violations(page) == [], path


def test_a_phone_scrolls_tables_and_not_the_page(day, open_as, pipeline):
    with open_as("viewer", viewport={"width": 390, "height": 800}) as page:
        for path in ("", f"board_detail/days/{day}"):
            page.goto(f"{pipeline.airflow_url}/integrity/{path}")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


def test_the_keyboard_reaches_a_day_and_its_buttons(day, open_as, pipeline):
    with open_as("operator") as page:
        page.goto(f"{pipeline.airflow_url}/integrity/board_detail/days/{day}")
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.name"))
    assert reached[:2] == ["board_detail", "order_detail"]
    assert [name for name in reached if name in ("reason", "Dry run", "Rebuild and publish", "Undo", "Redo")] == [
        "reason", "Dry run", "Rebuild and publish", "Undo", "Redo",
    ]  # fmt: skip


def test_form_values_of_the_page_are_checked_by_airflow(pipeline, day):
    """The page has no rights of its own: what it sends is what anyone can send."""
    with pipeline.airflow("viewer") as viewer:
        answer = httpx.post(
            f"{pipeline.airflow_url}/api/v2/dags/reprocess_days/dagRuns",
            headers=viewer.authorization(),
            json={"logical_date": None, "conf": reprocessing(day)},
        )
    assert answer.status_code == 403
