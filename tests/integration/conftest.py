"""Fixtures that live tests share."""

import sys

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_consumer_outlives_its_broker():
    """A rebuild's reader is kept for the next split; one whose broker has gone would look for it for ever."""
    yield
    if (splits := sys.modules.get("spark_jobs.connectors.splits")) is not None:
        splits._reader.cache_clear()
