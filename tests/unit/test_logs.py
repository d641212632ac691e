"""Log entries as text and as JSON lines."""

import asyncio
import datetime as dt
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.contracts.errors import ConfigurationError
from include.runtime.command import component_of
from include.runtime.logs import REQUEST, JsonFormatter, RequestIds, TextFormatter, log_format

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY_ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def entry(message, *arguments, exc_info=None, **more):
    record = logging.LogRecord("a.logger", logging.WARNING, __file__, 1, message, arguments, exc_info)
    record.created = dt.datetime(2026, 11, 20, 9, 30, tzinfo=dt.UTC).timestamp()
    record.__dict__.update(more)
    return record


def formatted(record):
    line = JsonFormatter("gateway").format(record)
    assert line.isascii()
    assert "\n" not in line
    return json.loads(line)


def test_an_entry_is_a_json_object():
    assert formatted(entry("%d events", 7)) == {
        "timestamp": "2026-11-20T09:30:00.000Z",
        "level": "WARNING",
        "logger": "a.logger",
        "component": "gateway",
        "message": "7 events",
    }


@pytest.mark.parametrize("text", ["a\nb", 'a"b\\', "\u2028", "\ud800", "\x00\x1b", "서울"])
def test_no_text_ends_the_line(text):
    assert formatted(entry("%s", text))["message"] == text


def test_an_exception_is_in_the_same_line():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = formatted(entry("failed", exc_info=sys.exc_info()))
    assert found["message"] == "failed"
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: two\nlines")


def test_fields_of_an_entry_are_fields_of_the_object():
    assert formatted(entry("m", fields={"status": 201}))["status"] == 201


def test_an_entry_names_the_request_of_its_task_only():
    text, ids = TextFormatter(), RequestIds("r-1", "4bf92f3577b34da6a3ce929d0e0e4736")

    async def request():
        REQUEST.set(ids)
        return formatted(entry("m")), text.format(entry("m"))

    async def requests():
        return await asyncio.create_task(request())

    as_json, as_text = asyncio.run(requests())
    assert (as_json["request_id"], as_json["trace_id"]) == ("r-1", ids.trace_id)
    assert as_text.endswith(f"WARNING a.logger m request_id=r-1 trace_id={ids.trace_id}")
    assert "request_id" not in formatted(entry("m"))
    assert text.format(entry("m")).endswith("WARNING a.logger m")


def test_the_format_is_text_by_default_and_checked():
    assert log_format({}) == log_format({"LOG_FORMAT": ""}) == "text"
    assert log_format({"LOG_FORMAT": "json"}) == "json"
    with pytest.raises(ConfigurationError, match="LOG_FORMAT='xml': not one of text, json"):
        log_format({"LOG_FORMAT": "xml"})


@pytest.mark.parametrize(
    ("path", "component"),
    [
        ("pipeline gateway run", "gateway"),
        ("pipeline stream run", "stream"),
        ("stream.py", "stream"),
        ("pipeline archive day", "archive_day"),
        ("archive_day.py", "archive_day"),
        ("pipeline database migrate", "database_migrate"),
        ("pipeline gateway tokens add", "gateway_tokens_add"),
        ("pipeline kafka create-topics", "kafka_create_topics"),
    ],
)
def test_a_component_is_named_after_its_command(path, component):
    assert component_of(path) == component


def run(log_format, *command):
    environment = {**REPOSITORY_ENVIRONMENT, "LOG_FORMAT": log_format}
    ended = subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stderr.splitlines()


def test_a_command_logs_json_lines():
    code, [line] = run("json", "-m", "pipeline", "gateway", "run")
    found = json.loads(line)
    assert (code, found["component"], found["level"]) == (78, "gateway", "ERROR")
    assert "KAFKA_BOOTSTRAP_SERVERS is not set" in found["message"]


def test_a_command_refuses_another_format_in_a_line_of_text():
    code, [line] = run("xml", "-m", "pipeline", "gateway", "run")
    assert code == 78
    assert "ConfigurationError: LOG_FORMAT='xml'" in line


@pytest.mark.parametrize("fails", ["raise ValueError", "threading.Thread(target=lambda: 1 / 0).start()"])
def test_an_uncaught_exception_is_one_line(fails):
    program = f"import threading\nfrom include.runtime import logs\nlogs.set_up('c')\n{fails}"
    _, [line] = run("json", "-c", program)
    found = json.loads(line)
    assert found["level"] == "CRITICAL"
    assert "Error" in found["exception"]


@pytest.mark.parametrize(
    "asks",
    [
        "offsets.OffsetReader(kafka, 1.0).ends('board')",
        "offsets.OffsetReader(kafka, 1.0).topic_id('board')",
        "home_cluster.require_own_cluster(kafka, (), 1.0)",
        "(of_range := reader.RangeReader(kafka)).begin('board', {0: 0}); [*of_range.iter_to({0: 1}, {0: 0}, 1.0)]",
    ],
)
def test_what_librdkafka_logs_is_json_too(asks):
    program = (
        "from include.runtime import logs; from include.runtime.kafka_connection import KafkaConnection\n"
        "from include.gateway import home_cluster; from include.kafka import offsets, reader\n"
        f"logs.set_up('c'); kafka = KafkaConnection('127.0.0.1:1')\n{asks}"
    )
    _, lines = run("json", "-c", program)
    of_client, end = map(json.loads, lines)  # librdkafka tries again and again, and repeats itself: one entry is enough
    assert "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused" in of_client["message"]
    assert "BrokerUnavailable" in end["exception"]


def test_no_client_of_kafka_is_made_without_the_log():
    made = {
        str(file.relative_to(ROOT))
        for folder in ("include", "spark_jobs", "dags", "plugins")
        for file in (ROOT / folder).rglob("*.py")
        if ".librdkafka()" in file.read_text()
    }
    assert made == {"include/kafka/access.py"}
