"""Waiting out what passes by itself, and nothing else."""

import pytest

from include.contracts.errors import BrokerUnavailable, ContractMismatch
from include.runtime.retry import retry_transient


def failing(times, error):
    """A call that fails so often, then answers."""
    left = iter(range(times))

    def call():
        if next(left, None) is not None:
            raise error
        return "answer"

    return call


def test_a_retryable_error_is_waited_out():
    assert retry_transient(failing(2, BrokerUnavailable())) == "answer"


def test_after_the_time_limit_the_error_itself_is_raised():
    with pytest.raises(BrokerUnavailable):
        retry_transient(failing(1_000, BrokerUnavailable()), max_wait_s=0.01)


def test_another_error_is_not_tried_again():
    with pytest.raises(ContractMismatch):
        retry_transient(failing(1, ContractMismatch()))
