"""Backfills by date: over the API, on the command line, and in the form of Airflow's page in Chromium."""

import subprocess
from contextlib import suppress

import pytest

from demo.airflow_client import AirflowRefused
from tests.servers import wait_until
from tests.support.browser import logged_in
from tests.support.http import HTTP
from tests.support.messages import DAY_NOT_OVER
from tests.support.pipeline import ROOT

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def day(today):
    """A day that no night and no backfill of another test takes."""
    return today.before(11)


def dry_run(pipeline, operator, earliest, latest, **values):
    """The days that Airflow's API lists for these bounds."""
    body = {"dag_id": "nightly_rebuild", "from_date": earliest, "to_date": latest, **values}
    answer = HTTP.post(
        f"{pipeline.airflow_url}/api/v2/backfills/dry_run", headers=operator.authorization(), json=body
    ).raise_for_status()
    return [row["partition_key"] for row in answer.json()["backfills"]]


@pytest.mark.parametrize(
    "bounds",
    [
        ("{0}", "{0}"),
        ("{0}T00:00:00Z", "{0}T00:00:00Z"),
        ("{0}T00:00:00Z", "{0}T23:59:59Z"),
        ("{0}T00:00:00-10:00", "{0}T23:59:59.999-10:00"),
        ("{0}T00:00:00+13:00", "{0}T00:00:00+13:00"),
    ],
)
def test_the_api_lists_the_date_that_is_from_and_to(pipeline, operator, day, bounds):
    assert dry_run(pipeline, operator, *(bound.format(day) for bound in bounds)) == [str(day)]


def test_the_api_lists_the_dates_forwards_and_backwards(pipeline, operator, day):
    bounds = [f"{one}T00:00:00+09:00" for one in (day.before(2), day)]
    forwards = [str(day.before(age)) for age in (2, 1, 0)]

    assert dry_run(pipeline, operator, *bounds, reprocess_behavior="completed") == forwards
    backwards = dry_run(pipeline, operator, *bounds, reprocess_behavior="completed", run_backwards=True)
    assert backwards == forwards[::-1]


def test_a_date_in_the_future_is_refused(pipeline, operator, today):
    with pytest.raises(AirflowRefused, match="future"):
        operator.preview_backfill("nightly_rebuild", today.before(-2).date)


@pytest.mark.parametrize("path", ["backfills/dry_run", "backfills"])
@pytest.mark.parametrize("ahead", [0, 5])
def test_a_backfill_that_reaches_beyond_yesterday_is_refused_and_holds_up_no_other(
    pipeline, operator, day, today, path, ahead
):
    last, address, headers = today.before(-ahead), f"{pipeline.airflow_url}/api/v2", operator.authorization()
    body = {"dag_id": "nightly_rebuild", "from_date": f"{day}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
    answer = HTTP.post(f"{address}/{path}", headers=headers, json=body)
    assert answer.status_code == 422, answer.text
    assert f"to={last}: {DAY_NOT_OVER.format(today.zone)}" in answer.text
    made = HTTP.get(f"{address}/backfills", headers=headers, params={"dag_id": "nightly_rebuild"}).raise_for_status()
    assert [each for each in made.json()["backfills"] if each["completed_at"] is None] == []


def test_the_command_line_lists_the_date_that_is_from_and_to(pipeline, operator, day):
    command = ["airflow", "backfill", "create", "--dag-id", "nightly_rebuild", "--from-date", str(day)]
    finished = subprocess.run(
        [*command, "--to-date", str(day), "--dry-run"], env=pipeline.components.environment, cwd=ROOT, text=True,
        capture_output=True, check=True, timeout=240,
    )  # fmt: skip

    table = [line for line in finished.stdout.splitlines() if line.startswith("|")]
    assert len(table) == 2, finished.stdout  # the head and one run
    assert str(day) in table[1]


@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Auckland"])
def test_the_form_makes_the_date_that_a_person_chose_in_the_zone_of_the_page(browser, pipeline, operator, day, zone):
    """The operator's form, with the date typed into both fields and no time."""
    earlier = {run.run_id for run in operator.runs_of_day("nightly_rebuild", day.date)}
    listed = []

    def note(response):
        if response.url.endswith("/backfills/dry_run") and response.ok:
            listed.append([row["partition_key"] for row in response.json()["backfills"]])

    with logged_in(
        browser, pipeline.airflow_url, "operator", pipeline.variables["AIRFLOW_OPERATOR_PASSWORD"], timezone_id=zone
    ) as page:
        page.on("response", note)
        page.set_default_timeout(120_000)
        page.goto(f"{pipeline.airflow_url}/dags/nightly_rebuild")
        page.get_by_test_id("trigger-dag-button").first.click()
        form = page.get_by_role("dialog").first
        form.get_by_text("Backfill", exact=True).click()
        form.get_by_text("All Runs", exact=True).click()
        for number in (0, 1):
            form.get_by_test_id("datetime-input").nth(number).click()
            page.get_by_placeholder("YYYY/MM/DD").fill(str(day).replace("-", "/"))
            page.keyboard.press("Escape")
            page.get_by_placeholder("YYYY/MM/DD").wait_for(state="detached")
        form.get_by_text("1 run will be triggered.").wait_for()
        assert listed[-1] == [str(day)]
        form.get_by_role("button", name="Run Backfill").click()
        page.get_by_text("Backfill generated").first.wait_for()

    made = [run for run in operator.runs_of_day("nightly_rebuild", day.date) if run.run_id not in earlier]
    assert [run.partition_key for run in made] == [str(day)]

    def is_given_up():
        with suppress(AirflowRefused):  # a deadlock with the scheduler, which starts the run's tasks
            operator.give_up(made[0])
            return True

    wait_until(is_given_up, 60, "the run is given up")
