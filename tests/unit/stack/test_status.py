"""The lines of `make status` about the stream."""

from pathlib import Path

import pytest
from rich.console import Console

from include.database.stream_progress import Progress, Seen
from stack import env_file
from stack.layout import Layout
from stack.machine import unused
from stack.status import progress_table, read_progress, show

FIGURES = {
    "pending": 3, "pending_oldest_s": 4000.0, "rejects": 2, "duplicates": 5,
    "table_rows": 442_017, "table_memory_bytes": 120 << 20, "table_disk_bytes": 8 << 20,
}  # fmt: skip


def seen(query: str, age_s: float = 0.3, **changes: object) -> Seen:
    progress = Progress(query, "d1", 4, 7, 1200, 340, 9000, {}, 500.2, 22_000.4, 250, 0.44, {}, FIGURES, None)
    return Seen(progress._replace(**changes), age_s)


def printed(*progress: Seen) -> list[list[str]]:
    """The cells of each line, borders apart."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(progress_table(progress))
    lines = capture.get().rstrip().splitlines()
    return [[cell.strip() for cell in line.strip().strip("│").split("│")] for line in lines if "│" in line] + [
        [lines[-1].strip()]
    ]


def test_a_row_a_query_and_one_for_both() -> None:
    join, serve, both, caption = printed(seen("join"), seen("serve", lag_records=0, lag_s=0.0))
    assert join == ["join", "500", "22,000", "250", "0.4", "1,200 in 0.34 s", "", "", "", ""]
    assert serve[:5] == ["serve", "500", "22,000", "0", "0.0"]
    assert [cell for cell in both if cell] == ["both", "3, oldest 1:06:40", "2", "5"]
    assert caption == ["member table: 442,017 rows, 128 MiB; driver 4"]


def test_counts_of_two_drivers_are_added_and_those_of_a_former_driver_are_not() -> None:
    of_serve = {"driver_id": "d2", "epoch": 5, "metrics": {"rejects": 1, "duplicates": 2}}
    *_, both, caption = printed(seen("join"), seen("serve", **of_serve))
    assert [cell for cell in both if cell] == ["both", "3, oldest 1:06:40", "3", "7"]
    assert caption == ["member table: 442,017 rows, 128 MiB; driver 4, 5"]
    *_, both, caption = printed(seen("join", age_s=3600), seen("serve", **of_serve))
    assert [cell for cell in both if cell] == ["both", "?", "1", "2"]
    assert caption == ["member table: 0 rows, 0 MiB; driver 5"]


def test_what_is_not_known_is_a_question_mark() -> None:
    nothing = dict.fromkeys(("input_rate", "processed_rate", "lag_records", "lag_s", "duration_ms", "metrics"))
    join, both, _ = printed(seen("join", **nothing))
    assert join[:6] == ["join", "?", "?", "?", "?", ""]
    assert [cell for cell in both if cell] == ["both", "?", "0", "0"]


def test_says_what_a_query_waits_for() -> None:
    join, *_ = printed(seen("join", waiting_for="BrokerUnavailable: x, since noon"))
    assert join[-1] == "BrokerUnavailable: x, since noon"


def test_says_when_the_driver_gives_no_sign_of_life() -> None:
    join, *_ = printed(seen("join", age_s=3700, waiting_for="BrokerUnavailable: x"))
    assert join[-1] == "no heartbeat for 1:01:40"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    env_file.ensure(tmp_path / ".env")
    text = (tmp_path / ".env").read_text()
    (port,) = unused(1)
    (tmp_path / ".env").write_text("".join(
        f"DATABASE_PORT={port}\n" if line.startswith("DATABASE_PORT=") else line for line in text.splitlines(True)
    ))  # fmt: skip
    return Layout.of(state=tmp_path / "state", env_file=tmp_path / ".env")


def test_says_that_postgresql_is_not_there_and_goes_on(layout: Layout) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        show([], layout, console)
    assert "service" in capture.get()
    assert "stream: no metrics: PostgreSQL cannot be reached." in capture.get()


def test_says_that_there_are_no_settings_yet(tmp_path: Path) -> None:
    assert "run `make up` first" in read_progress(Layout.of(state=tmp_path, env_file=tmp_path / ".env"))["stream"]


def test_each_pipeline_has_a_table_of_its_own(layout: Layout) -> None:
    text = layout.env_file.read_text()
    layout.env_file.write_text(text.replace("PIPELINES=board_detail\n", "PIPELINES=board_detail,order_detail\n"))
    env_file.ensure(layout.env_file)
    assert [*read_progress(layout)] == ["stream", "stream-order-detail"]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(progress_table([seen("join")], "stream-order-detail"))
    assert "stream-order-detail" in capture.get()
