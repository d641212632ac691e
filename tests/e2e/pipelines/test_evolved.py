"""Columns are added to a pipeline that has published, certified and archived days: one is built again, one is not."""

import dataclasses
import shutil

import pytest

from include.contracts.day import Day
from include.contracts.definition import FOLDER
from include.contracts.pipelines import load_definitions
from include.database.migrate import migrate
from include.integrity.days.comparison import diff, verify
from include.integrity.days.publication import undo
from include.kafka.admin import create_topics
from include.runtime.settings import Settings
from tests.e2e.pipelines.test_second import customer, order
from tests.support.certifying import certify_alone, take_everything
from tests.support.evolved import NEW_COLUMNS, evolved
from tests.support.pipeline import environment, produce, rows, run_module
from tests.support.publication import publish

ZONE = "UTC"
BUILT_AGAIN, LEFT = Day.parse("2026-11-19", ZONE), Day.parse("2026-11-20", ZONE)
SHOWN = "SELECT order_number, channel, customer_segment FROM order_detail WHERE day = %s ORDER BY order_number"
HASHES = "SELECT id, content_hash, hashed_columns FROM generation ORDER BY id"


def at(day, **fields):
    instant = f"{day}T10:00:00.000Z"
    return {"orderedAt": instant, "changedAt": instant, **fields}


def rebuild(variables, day, run_id, source="auto"):
    run_module(["spark_jobs/rebuild_day.py", "--day", str(day), "--run-id", run_id, "--source", source], variables)


@pytest.fixture
def variables(kafka, postgres, tmp_path):
    postgres.new_database("orders_evolved")
    return {
        **environment(kafka, postgres, "orders_evolved", tmp_path), "PIPELINE": "order_detail",
        "PIPELINE_TIMEZONE": ZONE, "ARCHIVE_DIR": str(tmp_path / "archive"),
    }  # fmt: skip


@pytest.mark.timeout(900)
def test_old_days_verify_and_a_day_that_is_built_again_has_the_values(variables, tmp_path):
    settings = Settings.from_environment(variables)
    migrate(settings)
    create_topics(settings.kafka)
    # producers may send a field before it is declared; records without it are as if it were null
    produce(settings, [
        ("customer", 1, customer(1, changedAt="2026-11-01T00:00:00.000Z", segment="gold customer")),
        ("customer", 2, customer(2, changedAt="2026-11-01T00:00:00.000Z")),
        ("order", 10, order(10, 1, **at(BUILT_AGAIN, channel="web"))),
        ("order", 11, order(11, 2, **at(BUILT_AGAIN))),
        ("order", 20, order(20, 1, **at(LEFT, channel="shop"))),
    ], accepted_at=f"{LEFT}T12:00:00.000Z")  # fmt: skip
    take_everything(settings)
    for day in (BUILT_AGAIN, LEFT):
        rebuild(variables, day, "before")
        publish(settings, day, "before")
        assert certify_alone(settings, day).reason is None
    run_module(["spark_jobs/archive_day.py", "--run-id", "a1"], variables)
    built = rows(settings, HASHES)

    definitions = tmp_path / "definitions"
    shutil.copytree(FOLDER, definitions)
    (definitions / "order_detail.toml").write_text(evolved(*NEW_COLUMNS), encoding="utf-8")
    variables = variables | {"DEFINITIONS_DIR": str(definitions)}
    pipeline = load_definitions(definitions)["order_detail"]
    settings = dataclasses.replace(settings, database=dataclasses.replace(settings.database, pipeline=pipeline))
    run_module(["-m", "pipeline", "database", "migrate"], variables)

    assert rows(settings, HASHES) == built
    assert rows(settings, SHOWN, (BUILT_AGAIN.date,)) == [(10, None, None), (11, None, None)]
    for day in (BUILT_AGAIN, LEFT):
        assert certify_alone(settings, day).reason is None

    rebuild(variables, BUILT_AGAIN, "after", "archive")
    report = verify(settings, BUILT_AGAIN, "after")
    assert (report.unexplained, dict(report.corrections)) == (0, {"column_added": 1})
    (sample,) = diff(settings, BUILT_AGAIN, "after").samples
    assert (sample.before["channel"], sample.after["channel"]) == (None, "web")
    assert (sample.before["customer_segment"], sample.after["customer_segment"]) == (None, "(hidden)")
    publish(settings, BUILT_AGAIN, "after")
    assert certify_alone(settings, BUILT_AGAIN).reason is None
    assert rows(settings, SHOWN, (BUILT_AGAIN.date,)) == [(10, "web", "gold customer"), (11, None, None)]
    assert rows(settings, SHOWN, (LEFT.date,)) == [(20, None, None)]
    masked = SHOWN.replace("order_detail ", "order_detail_masked ")
    assert rows(settings, masked, (BUILT_AGAIN.date,), role="analyst")[0] == (10, "web", "***********er")
    assert {"channel", "customer_segment"} <= set(rows(settings, HASHES)[-1][2])

    undo(settings, BUILT_AGAIN, "the test undoes it")
    assert rows(settings, SHOWN, (BUILT_AGAIN.date,)) == [(10, None, None), (11, None, None)]
    assert certify_alone(settings, BUILT_AGAIN).reason is None
    run_module(["spark_jobs/archive_day.py", "--run-id", "a2"], variables)
