"""Two pipelines side by side on one stack, each with its own database, stream, folders and ports."""

import pytest

from include.gateway.client import GatewayClient
from include.runtime.settings import Settings
from stack import control, leftovers
from stack.env_file import load_settings
from tests.e2e.pipelines.test_second import customer, order
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.clone import Clone
from tests.support.pipeline import rows

VIEWS = {
    "board_detail": "SELECT board_id, nickname, finality FROM board_detail",
    "order_detail": "SELECT order_number, customer_name, finality FROM order_detail",
}
STREAMS = ("stream", "stream-order-detail")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("pipelines") / "clone", PIPELINES="board_detail,order_detail")
    try:
        for name in ("gateway", *STREAMS):  # one after another: each driver takes two cores while it starts
            started = made.run("-m", "stack", "up", "--only", name, timeout_s=400)
            assert started.returncode == 0, started.stdout + started.stderr
        yield made
    finally:
        made.run("-m", "stack", "down")


@pytest.fixture(scope="module")
def both(clone):
    variables = load_settings(clone.layout)
    return {name: Settings.from_environment(variables, name) for name in VIEWS}


def shown(settings):
    return rows(settings, VIEWS[settings.pipeline.name])


@pytest.mark.timeout(900)
def test_each_pipeline_shows_its_own_records(clone, both):
    with GatewayClient(both["board_detail"].gateway) as gateway:
        for topic, value in (
            ("member", member(1)),
            ("customer", customer(1)),
            ("board", board(10, 1)),
            ("order", order(7)),
        ):
            gateway.post_event(topic, value)
    wait_until(lambda: all(map(shown, both.values())), 120, "both views have their row")
    assert shown(both["board_detail"]) == [(10, member(1)["nickname"], "live")]
    assert shown(both["order_detail"]) == [(7, "Customer 1", "live")]
    folders = {settings.stream.checkpoint_dir for settings in both.values()}
    assert len(folders) == 2
    assert all(any(folder.iterdir()) for folder in folders)


def test_status_and_logs_are_of_each_stream(clone):
    status = clone.run("-m", "stack", "status").stdout
    for name in STREAMS:
        (line,) = (line for line in status.splitlines() if line.startswith(f"{name} "))
        assert "running" in line
        assert f"┃ {name}" in status, "a table of its progress"
        assert clone.run("-m", "stack", "logs", name, timeout_s=30).stdout


@pytest.mark.timeout(900)
def test_the_story_of_a_pipeline_comes_out_as_told(clone):
    again = clone.run("-m", "stack", "up", "--only", "gateway,stream-order-detail", "--pipeline", "order_detail")
    assert (again.returncode, again.stderr) == (0, "")
    assert "is added to PIPELINES" not in again.stdout
    told = clone.run("-m", "demo", "order_detail", timeout_s=800)
    assert told.returncode == 0, told.stdout + told.stderr
    for fact in (
        "101 of 101 records are in the view",
        "joined with the newest customer, in every column",
        "it appeared when its customer arrived",
        "401 of 401 rows are final",
        "the order has the customer of its time again, in every column",
        "customer_version_changed",
        "the day is certified: ",
        "401 of 401 rows are live",
    ):
        assert fact in told.stdout, told.stdout


def test_one_stream_stops_and_the_other_goes_on(clone, both):
    before = len(shown(both["order_detail"]))
    control.stop_service("stream", clone.layout)
    with GatewayClient(both["board_detail"].gateway) as gateway:
        gateway.post_event("order", order(8))
    wait_until(lambda: len(shown(both["order_detail"])) == before + 1, 60, "the order is in the view")
    control.start_service("stream", clone.layout)


def test_down_leaves_nothing_and_clean_removes_the_data_of_both(clone):
    stopped = clone.run("-m", "stack", "down")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert leftovers.find(clone.layout.state) == []
    clone.run("-m", "stack", "clean")
    assert not (clone.layout.state / "pipelines").exists()
