"""Any `.env`: either settings with which everything can be made, or one line that names the setting or the line."""

import datetime as dt
import os
import re
from pathlib import Path
from urllib.request import Request

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from include.runtime.settings import Settings
from stack import env_file
from stack.airflow_env import airflow_environment
from stack.env_file import load_settings
from stack.layout import Layout, StackError
from stack.services import AirflowHealth, HttpHealth, Service, declare

NAMES = [each.variable for each in env_file.lines_of({})]
ODD = [
    "", "0", "-1", "1", "99999", "65536", "18081", "nan", "inf", "-inf", "1e999", "1e308", "1_0", "9" * 5000, "²",
    "１８０８０", "2 g", "2gb", "2G", "2048", "Asia", "Asia/", "../etc", "/etc/passwd", "서울", "a b", "a\tb", "a\0b",
    "a\x85b", "a\u2028b", "${NOWHERE}", "${GATEWAY_PORT}", "${AIRFLOW_PORT}", "'", '"x', "x # y", "http://", "http://[",
    "http://h:99999", "h:1,h", "local[0]", "local", "yarn", "kafka", "kafka,redis", "s3://b/a", "\ufeff", "\r",
]  # fmt: skip
VALUES = st.sampled_from(ODD) | st.text(max_size=20) | st.integers().map(str) | st.floats().map(str)
CHANGES = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(NAMES), VALUES),
    st.tuples(st.just("add"), st.sampled_from([*NAMES, "MINE"]), VALUES),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just("")),
)
ENCODINGS = st.sampled_from(["utf-8"] * 12 + ["utf-8-sig", "utf-16", "utf-16-le", "cp949", "latin-1"])
BYTES = st.none() | st.tuples(st.integers(0, 3000), st.binary(max_size=4))


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    made = Layout.of(root=tmp_path_factory.mktemp("env"))
    env_file.ensure(made.env_file)
    return made


@pytest.fixture(scope="module")
def lines(layout: Layout) -> list[str]:
    return layout.env_file.read_text().splitlines()


@pytest.mark.parametrize("kind", ["set", "add", "remove"])
def test_every_odd_value_of_every_setting(layout, lines, kind):
    for name in NAMES:
        for value in ODD if kind != "remove" else [""]:
            check(layout, lines, [(kind, name, value)])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, max_size=3), ENCODINGS, BYTES)
@example([("add", "MINE", ""), ("add", "MINE", "")], "utf-8", (0, b""))
def test_any_file(layout, lines, changes, encoding, stray):
    check(layout, lines, changes, encoding, stray)


def check(
    layout: Layout,
    lines: list[str],
    changes: list[tuple[str, str, str]],
    encoding: str = "utf-8",
    stray: tuple[int, bytes] | None = None,
) -> None:
    text = "\n".join(changed(lines, changes)) + "\n"
    content = text.encode(encoding, errors="replace")
    if stray is not None:
        content = content[: stray[0]] + stray[1] + content[stray[0] :]
    layout.env_file.write_bytes(content)
    names = {name for _, name, _ in changes}
    try:
        found = load_settings(layout)
    except StackError as exc:
        message = str(exc)
        assert message.isprintable(), message
        named = names if stray is None else {*NAMES}
        assert re.search(r"line \d+ |lines \d+ and \d+ ", message) or named & set(re.findall(r"\w+", message)), message
        assert stray is not None or encoding != "utf-8" or changes, message
    else:
        if stray is None and "GATEWAY_URL" not in names:
            assert found["GATEWAY_URL"] == f"http://127.0.0.1:{found['GATEWAY_PORT']}"
        make_everything(found)


def changed(lines: list[str], changes: list[tuple[str, str, str]]) -> list[str]:
    for kind, name, value in changes:
        if kind == "add":
            lines = [*lines, f"{name}={value}"]
        else:
            with_value = [f"{name}={value}"] if kind == "set" else []
            lines = [each for line in lines for each in (with_value if line.startswith(f"{name}=") else [line])]
    return lines


def make_everything(found: dict[str, str]) -> None:
    """Generate everything that is made from settings before a process starts; no value may make it fail."""
    made = Settings.from_environment(found)
    for seconds in (made.gateway.delivery_timeout_s, made.stream.trigger_interval_s, made.batch.night_budget_s):
        assert dt.timedelta(seconds=seconds) >= dt.timedelta()
    for days in (made.kafka.retention_days, made.batch.undo_retention_days, made.batch.run_retention_days):
        assert dt.timedelta(days=days) * 3 > dt.timedelta()
    for memory in (made.stream.driver_memory, made.batch.driver_memory, found["KAFKA_HEAP"]):
        assert int(memory[:-1]) > 0 < "mgMG".index(memory[-1]) + 1
    for node in declare(found):
        if isinstance(node, Service) and isinstance(node.health, HttpHealth | AirflowHealth):
            Request(node.health.url).host.encode("ascii")  # nothing is opened
    for name, value in {**found, **airflow_environment(found, Path("/p"))}.items():
        assert b"\0" not in os.fsencode(name) + os.fsencode(value)
