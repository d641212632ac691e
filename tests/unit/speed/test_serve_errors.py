"""The classification of PostgreSQL's errors for a batch."""

from types import SimpleNamespace

import psycopg2
import pytest

from include.contracts.errors import DatabaseUnavailable
from include.database.bulk_copy import BatchInterrupted, BatchRefused, as_own, is_of_a_row, reason_of_refusal


def failure(code, base=psycopg2.DatabaseError, text="ERROR: refused\nDETAIL: (secret)", **diagnostics):
    """An error as psycopg2 raises it, with that SQLSTATE."""
    names = dict.fromkeys(("message_primary", "column_name", "constraint_name", "context")) | diagnostics
    return type("Failure", (base,), {"pgcode": code, "diag": SimpleNamespace(**names)})(text)


def own(error, is_lost=False):
    return as_own(error, is_lost, "db", 5432)


@pytest.mark.parametrize(
    "code",
    ["08006", "57P01", "57P02", "57P03", "57P05", "53100", "53300", "40P01", "40001", "25006", "55P03", "57014",
     "25P03", "58030"],
)  # fmt: skip
def test_what_passes_by_itself_is_tried_again(code):
    error = own(failure(code))
    assert type(error) is BatchInterrupted
    assert isinstance(error, DatabaseUnavailable)
    assert error.where["sqlstate"] == code


@pytest.mark.parametrize("code", ["42P01", "42703", "42501", "XX000", "25P02"])
def test_what_does_not_pass_ends_the_application(code):
    assert type(own(failure(code))) is BatchRefused


@pytest.mark.parametrize("base", [psycopg2.OperationalError, psycopg2.InterfaceError])
def test_a_connection_that_broke_is_tried_again(base):
    assert type(own(failure(None, base))) is BatchInterrupted
    assert type(own(failure(None), is_lost=True)) is BatchInterrupted
    assert type(own(failure("XX000"), is_lost=True)) is BatchInterrupted


def test_another_error_without_a_code_is_not():
    assert type(own(failure(None, psycopg2.ProgrammingError))) is BatchRefused


@pytest.mark.parametrize(("code", "expected"), [("22021", True), ("22008", True), ("23514", True), ("54000", True),
                                                ("54001", False), ("42P01", False), (None, False)])  # fmt: skip
def test_a_value_is_the_reason(code, expected):
    assert is_of_a_row(failure(code)) is expected


def test_what_a_row_holds_is_in_no_message():
    for error in (failure("42P01", message_primary="no such table"), failure(None), failure(None, psycopg2.Error)):
        assert "secret" not in str(own(error))
    context = 'COPY stage_detail, line 3, column day: "secret"'
    assert "secret" not in reason_of_refusal(failure("22008", context=context))


def test_a_refusal_names_column_and_constraint_where_they_are_known():
    context = 'COPY detail_live, line 3, column day: "x"'
    assert "SQLSTATE 22008, column day;" in reason_of_refusal(failure("22008", context=context))
    assert "SQLSTATE 23514, constraint no_spam;" in reason_of_refusal(failure("23514", constraint_name="no_spam"))
    assert "SQLSTATE 22021;" in reason_of_refusal(failure("22021", context="COPY stage_detail, line 3"))
