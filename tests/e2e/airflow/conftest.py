"""One Airflow for all files of this folder, which one process of `make test-e2e` runs.

The files share its days: each test uses days and ids that no other file uses. Airflow and Chromium stop after the
last file: Playwright leaves an event loop in its thread, in which other tests could not run one of theirs.
"""

import datetime as dt
from secrets import token_urlsafe

import pytest

from include.contracts.day import Day
from include.runtime.failpoints import FOLDER_VARIABLE, VARIABLE
from tests.servers import wait_until
from tests.support.airflow import REBUILD_PAUSE, RUN_DEADLINE_S, nights
from tests.support.browser import chromium
from tests.support.pipeline_processes import batch_side
from tests.support.webhook import Webhook


@pytest.fixture(scope="package")
def webhook():
    server = Webhook()
    yield server
    server.close()


@pytest.fixture(scope="package")
def failpoints(tmp_path_factory):
    """The folder in which a file arms a failpoint of the tasks."""
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="package")
def began():
    """An instant before Airflow starts."""
    return dt.datetime.now(dt.UTC)


@pytest.fixture(scope="package")
def pipeline(began, tmp_path_factory, webhook, failpoints):
    """The batch layer after its first night, which Airflow runs by itself and which finds nothing to rebuild."""
    more = {
        "ALERT_WEBHOOK_URL": f"{webhook.url}/{token_urlsafe()}",
        "ALERT_SMTP_CONNECTION": f"smtp://u:{token_urlsafe()}@127.0.0.1:9",
        VARIABLE: f"{REBUILD_PAUSE}:pause:armed",
        FOLDER_VARIABLE: str(failpoints),
    }
    with batch_side(tmp_path_factory.mktemp("airflow"), **more) as running:
        today = Day.of(dt.datetime.now(dt.UTC), running.settings.timezone)
        with running.airflow("operator") as client:
            client.wait_for_dag("nightly_rebuild")
            wait_until(lambda: nights(client, today), RUN_DEADLINE_S, "the night's run")
            for night in nights(client, today):
                client.wait(night, RUN_DEADLINE_S)
            assert client.failed_runs() == []  # nothing is red before a person has done anything
        yield running


@pytest.fixture(scope="package")
def today(pipeline):
    return Day.of(dt.datetime.now(dt.UTC), pipeline.settings.timezone)


@pytest.fixture
def operator(pipeline):
    with pipeline.airflow("operator") as client:
        client.wait_for_dag("nightly_rebuild")
        client.wait_for_dag("rebuild_day")
        client.wait_for_dag("reprocess_days")
        client.wait_for_dag("undo_day")
        client.wait_for_dag("watch_pipeline")
        yield client


@pytest.fixture(scope="package")
def browser():
    with chromium() as found:
        yield found
