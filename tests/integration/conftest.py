"""What the gateway's live tests share."""

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
