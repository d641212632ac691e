"""Failures that pass by themselves are told from those that a record can cause."""

import pytest
from py4j.protocol import Py4JNetworkError

from include.contracts.errors import BrokerUnavailable, DriverSuperseded, LedgerConflict
from include.database.bulk_copy import BatchInterrupted, BatchRefused
from spark_jobs.connectors.failures import cause_of, is_passing, task_error


@pytest.mark.parametrize(
    "error",
    [BrokerUnavailable(), DriverSuperseded(), LedgerConflict(), BatchInterrupted(), Py4JNetworkError("gone"),
     ConnectionResetError()],
)  # fmt: skip
def test_our_own_errors_and_lost_connections_say_nothing_of_the_records(error):
    assert is_passing(error)


@pytest.mark.parametrize(
    "error", [BatchRefused(), ValueError("year 10000"), UnicodeEncodeError("utf-8", "a", 0, 1, "")]
)
def test_a_refused_batch_and_errors_of_python_may_be_for_a_record(error):
    assert not is_passing(error)


class JavaClass:
    """As py4j gives the class of an object."""

    def __init__(self, name):
        self._name = name

    def getName(self):  # noqa: N802  # Java's
        return self._name


class JavaError:
    """As py4j gives an exception."""

    def __init__(self, name, message, cause=None):
        self._name, self._message, self._cause = name, message, cause

    def getClass(self):  # noqa: N802
        return JavaClass(self._name)

    def getMessage(self):  # noqa: N802
        return self._message

    def getCause(self):  # noqa: N802
        return self._cause


class FailedCall(Exception):
    """As py4j raises it: its text names the call alone."""

    def __init__(self, java_exception):
        super().__init__("An error occurred while calling o11737.getResult.")
        self.java_exception = java_exception


def test_the_cause_of_a_failed_call_is_the_deepest_one_of_java():
    overflow = JavaError("java.lang.ArithmeticException", "long overflow")
    aborted = JavaError("org.apache.spark.SparkException", "Job aborted due to stage failure", overflow)
    assert cause_of(FailedCall(aborted)) == "java.lang.ArithmeticException: long overflow"
    assert cause_of(FailedCall(JavaError("java.lang.NullPointerException", None))) == (
        "java.lang.NullPointerException: no message"
    )


def test_a_worker_that_ended_is_named_and_not_the_end_of_its_socket():
    text = "Python worker exited unexpectedly (crashed)"
    ended = JavaError("a.SparkException", text, JavaError("b.EOFException", None))
    aborted = JavaError("a.SparkException", f"Job aborted: {text}", ended)
    assert cause_of(FailedCall(aborted)) == f"a.SparkException: {text}"


_OF_JAVA = "\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)\n"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "Traceback (most recent call last):\n  File 'x.py', line 1\n    read()\n"
            f"include.contracts.errors.StoreUnavailable: host=x\n{_OF_JAVA}"
            "Caused by: java.net.SocketException: Connection reset"
            f"{_OF_JAVA}\nDriver stacktrace:",
            "include.contracts.errors.StoreUnavailable: host=x",
        ),
        (
            "Job aborted: Task 0 failed: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
            "Traceback (most recent call last):\n  File 'x.py', line 1\n    read()\n"
            f"pyarrow.lib.ArrowInvalid: not a Parquet file\n{_OF_JAVA}",
            "pyarrow.lib.ArrowInvalid: not a Parquet file",
        ),
        (
            "Traceback (most recent call last):\n  File 'x.py', line 1\n    write()\n"
            f"psycopg2.errors.CheckViolation: new row is refused\nDETAIL:  Failing row contains (1).\n{_OF_JAVA}",
            "psycopg2.errors.CheckViolation: new row is refused",
        ),
        ("Job 3 cancelled because SparkContext was shut down", "Job 3 cancelled because SparkContext was shut down"),
    ],
)
def test_a_failed_task_is_told_by_its_own_error(message, reason):
    assert task_error(FailedCall(JavaError("org.apache.spark.SparkException", message))) == reason


def test_causes_that_are_a_circle_have_an_end():
    one = JavaError("a.One", "1")
    one._cause = JavaError("a.Two", "2", one)
    assert cause_of(FailedCall(one)).startswith("a.")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("year 10000 is out of range"), "ValueError: year 10000 is out of range"),
        (ValueError('invalid input syntax for type integer: "010-1234"\nLINE 1'),
         "ValueError: invalid input syntax for type integer: '…'"),
        (KeyError("Mina"), "KeyError: '…'"),
        (RuntimeError(), "RuntimeError: no message"),
        (ValueError("a\0b"), "ValueError: a\\0b"),
    ],
)  # fmt: skip
def test_a_cause_is_one_line_without_quoted_values(error, text):
    assert cause_of(error) == text
