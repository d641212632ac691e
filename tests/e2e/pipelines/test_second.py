"""A pipeline that is nothing but a definition: orders with their customers, beside the boards, through the stream, a
rebuild, its publication, an undo, the certificate and the archive.

Its definition has further fields, with names that the stream and the rebuild give to columns of their own.
"""

import dataclasses
import datetime as dt
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from include.contracts.day import Day
from include.contracts.pipelines import FOLDER, load_definition
from include.database.migrate import migrate
from include.integrity.commands import text_of
from include.integrity.days.catch_up import wait_until_caught_up
from include.integrity.days.certificate import certify
from include.integrity.days.comparison import diff, verify
from include.integrity.days.publication import undo
from include.runtime.settings import Settings
from tests.e2e.speed.test_pipeline_live import Stream
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.pipeline import environment, produce, rows, run_module, with_topics
from tests.support.publication import publish
from tests.support.words import is_accepted, orders_with, words_of_tables

ZONE = "America/New_York"
DAY = Day.parse("2026-11-20", ZONE)
MORNING, EVENING = "2026-11-20T14:00:00.000Z", "2026-11-21T03:30:00.000Z"  # both on the 20th in New York
VIEW = ("SELECT order_number, customer_name, amount, is_paid, due_on, credit_limit, count, finality FROM order_detail"
        " ORDER BY order_number")  # fmt: skip


def customer(number, **fields):
    return {
        "number": number, "name": f"Customer {number}", "country": "US", "creditLimit": "1000.5", "isBusiness": False,
        "bornOn": "1990-02-28", "changedAt": MORNING, **fields,
    }  # fmt: skip


def order(number, of=1, **fields):
    return {
        "orderNumber": number, "customerNumber": of, "amount": "12.50", "currency": "USD", "isPaid": False,
        "dueOn": "2026-12-20", "note": None, "orderedAt": MORNING, "changedAt": MORNING, **fields,
    }  # fmt: skip


@pytest.fixture
def boards(kafka, postgres, tmp_path):
    return with_topics(kafka, postgres, "beside", tmp_path)


@pytest.fixture
def definitions(tmp_path):
    folder = tmp_path / "definitions"
    shutil.copytree(FOLDER, folder)
    words = words_of_tables()
    columns = [word for word in words if is_accepted(folder, word)]
    assert {"count", "headers", "timestamp"} <= {*columns} < {*words}
    text = orders_with(columns, [word for word in words if word != "changed_at"])
    (folder / "order_detail.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def variables(kafka, postgres, tmp_path, boards, definitions):
    postgres.new_database("orders_live")
    return {
        "DEFINITIONS_DIR": str(definitions),
        **environment(kafka, postgres, "orders_live", tmp_path), "PIPELINE": "order_detail",
        "PIPELINE_TIMEZONE": ZONE, "ARCHIVE_DIR": str(tmp_path / "archive"),
    }  # fmt: skip


@pytest.fixture
def settings(variables):
    pipeline = load_definition(Path(variables["DEFINITIONS_DIR"]) / "order_detail.toml")
    found = Settings.from_environment(variables)
    found = dataclasses.replace(found, database=dataclasses.replace(found.database, pipeline=pipeline))
    migrate(found)
    return found


@pytest.mark.timeout(600)
def test_orders_go_through_everything(boards, settings, variables, tmp_path):
    stream = Stream(variables, tmp_path / "stream.log")
    stream.start()
    try:
        produce(settings, [("customer", 1, customer(1)), ("customer", 1, customer(1, name="Later", changedAt=EVENING)),
                           ("customer", 2, customer(2, creditLimit=None, bornOn=None))])  # fmt: skip
        produce(boards, [("member", 1, member(1)), ("board", 10, board(10, 1))])
        produce(settings, [
            ("order", 10, order(10, count=7)),
            ("order", 11, order(11, 2, amount="-0.01", isPaid=True, dueOn=None, orderedAt=EVENING, changedAt=EVENING)),
            ("order", 12, order(12, 9)),
            ("order", 13, order(13, amount="1e3")),
        ])  # fmt: skip
        live = [
            (10, "Later", Decimal("12.50"), False, dt.date(2026, 12, 20), Decimal("1000.5000"), 7, "live"),
            (11, "Customer 2", Decimal("-0.01"), True, None, None, None, "live"),
        ]
        wait_until(lambda: rows(settings, VIEW) == live, 90, "the orders are in the view")
        wait_until(lambda: rows(settings, "SELECT order_number FROM pending_record") == [(12,)], 30, "one order waits")
        ((reason,),) = rows(settings, "SELECT reason FROM reject")
        assert reason.startswith("/amount: not a decimal number")
        produce(settings, [("customer", 9, customer(9, name="Comes late"))])
        wait_until(lambda: len(rows(settings, VIEW)) == 3, 60, "nobody waits")
        assert wait_until_caught_up(settings, 60).is_caught_up
        assert rows(settings, "SELECT shown_rows FROM day_status WHERE day = %s", (DAY.date,)) == [(3,)]
        assert rows(boards, "SELECT count(*) FROM detail_live") == [(0,)]  # no stream runs for them here

        run_module(["spark_jobs/rebuild_day.py", "--day", str(DAY), "--run-id", "r1"], variables)
        report = verify(settings, DAY, "r1")
        assert (report.unexplained, report.corrections) == (0, {"customer_version_changed": 1})
        assert "has 3 rows of 4 records, 0 pending, 1 rejected" in text_of(report)
        (changed,) = diff(settings, DAY, "r1").samples
        assert (changed.before["customer_name"], changed.after["customer_name"]) == ("(hidden)", "(hidden)")
        publish(settings, DAY, "r1")
        certificate = certify(settings, DAY, lambda _: {})
        assert [*map(certificate.count, ("raw_distinct", "rows", "rejected"))] == [4, 3, 1]
        assert certificate.reason is None
        assert [row[1] for row in rows(settings, VIEW)] == ["Customer 1", "Customer 2", "Comes late"]
        assert {row[-1] for row in rows(settings, VIEW)} == {"final"}
        masked = "SELECT customer_name FROM order_detail_by_key('{11}')"
        assert rows(settings, masked, role="analyst") == [("********" + " 2",)]

        undo(settings, DAY, "the test undoes it")
        assert {row[-1] for row in rows(settings, VIEW)} == {"live"}
        run_module(["spark_jobs/archive_day.py", "--run-id", "a1"], variables)
        assert {topic for (topic,) in rows(settings, "SELECT DISTINCT topic FROM archive_batch")} == {
            "order", "customer", "order-detail",
        }  # fmt: skip
        produce(settings, [("order", 10, None)], accepted_at="2026-11-21T04:00:00.000Z")
        wait_until(lambda: [row[0] for row in rows(settings, VIEW)] == [11, 12], 60, "the deleted order is hidden")
        assert stream.stop() == 0
    finally:
        stream.kill()
