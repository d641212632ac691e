"""Errors of tasks in the real Spark: whether a record may cause them."""

import os

import pytest

from spark_jobs.connectors.failures import cause_of, is_passing


def refuse(value):
    """Raise as a defect would."""
    raise OverflowError(f"{value} is too large")


def end(_):
    """End the worker, as a defect of a library would."""
    os._exit(11)


@pytest.mark.parametrize(
    ("task", "cause"), [(refuse, "OverflowError: 7 is too large"), (end, "Python worker exited unexpectedly")]
)
def test_an_error_of_a_task_may_be_for_a_record(spark, task, cause):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of whatever class Spark's version gives it
        spark.sparkContext.parallelize([7], 1).map(task).collect()
    assert not is_passing(caught.value)
    assert cause in cause_of(caught.value)
