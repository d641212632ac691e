"""One Airflow for all files of this folder, which one process of `make test` runs.

The files share its days: each test uses days and ids that no other file uses.
"""

import datetime as dt
from secrets import token_urlsafe

import pytest

from include.contracts.day import Day
from tests.servers import wait_until
from tests.support.airflow import RUN_DEADLINE_S, nights
from tests.support.browser import chromium
from tests.support.pipeline_processes import batch_side
from tests.support.webhook import Webhook


@pytest.fixture(scope="session")
def webhook():
    server = Webhook()
    yield server
    server.close()


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory, webhook):
    """The batch layer after its first night, which Airflow runs by itself and which finds nothing to rebuild."""
    address = f"{webhook.url}/{token_urlsafe()}"
    channels = {"ALERT_WEBHOOK_URL": address, "ALERT_SMTP_CONNECTION": f"smtp://u:{token_urlsafe()}@127.0.0.1:9"}
    with batch_side(tmp_path_factory.mktemp("airflow"), **channels) as running:
        today = Day.of(dt.datetime.now(dt.UTC), running.settings.timezone)
        with running.airflow("operator") as client:
            client.wait_for_dag("nightly_rebuild")
            wait_until(lambda: nights(client, today), RUN_DEADLINE_S, "the night's run")
            client.wait(*nights(client, today), RUN_DEADLINE_S)
        yield running


@pytest.fixture(scope="session")
def today(pipeline):
    return Day.of(dt.datetime.now(dt.UTC), pipeline.settings.timezone)


@pytest.fixture
def operator(pipeline):
    with pipeline.airflow("operator") as client:
        client.wait_for_dag("nightly_rebuild")
        client.wait_for_dag("reprocess_days")
        client.wait_for_dag("undo_day")
        client.wait_for_dag("watch_pipeline")
        yield client


@pytest.fixture(scope="session")
def browser():
    with chromium() as found:
        yield found
