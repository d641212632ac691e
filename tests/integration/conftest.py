"""What live tests share."""

import sys

import pytest

from tests.servers import kafka_server
from tests.support.broker import Broker


@pytest.fixture(scope="session")
def gateway_broker(tmp_path_factory):
    """A broker of the gateway tests' own: its topics are nobody else's, and it dies more than once."""
    with kafka_server(tmp_path_factory.mktemp("gateway-kafka")) as server:
        broker = Broker(server)
        broker.make_topics()
        yield broker


@pytest.fixture(scope="module", autouse=True)
def no_consumer_outlives_its_broker():
    """A rebuild's reader is kept for the next split; one whose broker has gone would look for it for ever."""
    yield
    if (splits := sys.modules.get("spark_jobs.batch.splits")) is not None:
        splits._reader.cache_clear()
