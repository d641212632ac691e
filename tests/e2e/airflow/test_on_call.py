"""On call at 3 am: docs/runbooks/alerts.md from the alert to the all-clear, in a real browser."""

import re

import pytest

from include.contracts.clock import rfc3339
from tests.fakes.events import member
from tests.support.airflow import (
    RUN_DEADLINE_S,
    noon,
    opened,
    post,
    post_board,
    shown,
    status,
)
from tests.support.browser import STATE_MS, integrity, logged_in, started_run
from tests.support.http import HTTP

pytestmark = pytest.mark.timeout(900)  # two Spark jobs, and as many watches


@pytest.fixture
def day(pipeline, today):
    """A day that the stream has opened, that is over, and that no night has built."""
    day = today.before(10)
    before = noon(day.before(1))
    post(pipeline, "member", member(400, nickname="강", createdAt=before, modifiedAt=before))
    post_board(pipeline, day, board_id=400, member_id=400)
    opened(pipeline, day)
    return day


def title_of(page, day, status):
    """The title of the day's page, which has a sign before the status."""
    return page.get_by_role("heading", level=1, name=re.compile(rf"^{day}: \W*{status}$"))


def test_on_call_gets_from_the_alert_to_the_all_clear(pipeline, operator, webhook, browser, day):
    def watch():
        """Run the watch, and return the notices about the day."""
        operator.wait(operator.trigger("watch_pipeline", {}), RUN_DEADLINE_S)
        return [body for _, _, body in webhook.calls if (body["name"], body["subject"]) == alert_of_day]

    alert_of_day = ("day_not_certified", str(day))

    # 1. the alert: what, since when, how bad, what to do; one while it lasts
    (alert,) = watch()
    assert (alert["event"], alert["severity"], alert["pipeline"]) == ("opened", "critical", "board_detail")
    assert alert["text"] == f"day {day} is not certified: it was never published; see its last nightly run"
    assert alert["since"] == rfc3339(day.end)
    assert watch() == [alert]

    # 2. the runbook opens at its address
    runbook = HTTP.get(alert["runbook"], headers=operator.authorization())
    assert runbook.text.startswith("# A night failed, or a day is not certified\n")

    with logged_in(browser, pipeline.airflow_url, "operator", pipeline.variables["AIRFLOW_OPERATOR_PASSWORD"]) as page:
        # 3. the state now
        frame = integrity(page)
        alerts = frame.get_by_role("region", name="Open alerts")
        alerts.get_by_text(alert["text"]).first.wait_for(timeout=STATE_MS)

        # 4. the day and its reason
        frame.get_by_role("link", name=str(day), exact=True).click()
        title_of(frame, day, "provisional").wait_for()
        frame.get_by_text("over, and never published").wait_for()

        # 5. the dry run changes nothing, and its summary has the counts
        frame.get_by_label("Reason").fill("alert at 3 am")
        frame.get_by_role("button", name="Dry run").click()
        run = operator.wait(started_run(frame, "reprocess_days"), RUN_DEADLINE_S)
        summary = operator.result(run, "summary")[str(day)]
        assert summary["result"] == "would be published"
        assert summary["corrections"] == {"missing": 1}
        assert status(pipeline, day)[0] == "provisional"

        # 6. rebuilt, published and certified
        page.goto(summary["page"])
        page.get_by_label("Reason").fill("alert at 3 am: the dry run is as expected")
        page.get_by_role("button", name="Rebuild and publish").click()
        operator.wait(started_run(page, "reprocess_days"), RUN_DEADLINE_S)
        page.reload()
        title_of(page, day, "certified").wait_for()
        assert shown(pipeline, day) == [(400, "강", "final")]

        # 8. the all-clear, and the alert is gone
        first, second = watch()
        assert (first, second["event"], second["key"]) == (alert, "closed", alert["key"])
        page.goto(f"{pipeline.airflow_url}/integrity/")
        assert str(day) not in page.get_by_role("region", name="Open alerts").inner_text()
