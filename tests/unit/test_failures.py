"""Failures that pass by themselves are told from those that a record can cause."""

import pytest
from py4j.protocol import Py4JNetworkError

from include.adapters.serving_errors import BatchInterrupted, BatchRefused
from include.errors import BrokerUnavailable, DriverSuperseded, LedgerConflict
from spark_jobs.connectors.failures import is_passing


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
