"""Two clusters on one address: a proxy leads to the one or the other, as when another stack takes a broker's port."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from stack.machine import LOOPBACK, unused
from tests.servers import Listener, kafka_server
from tests.support.broker import Broker
from tests.support.proxy import Proxy, proxy_to


@dataclass(frozen=True)
class TwoClusters:
    """`own` and `foreign` have topics of the same names; `proxy` leads to `own` at first."""

    own: Broker
    foreign: Broker
    proxy: Proxy
    own_port: int
    foreign_port: int

    @property
    def bootstrap_servers(self) -> str:
        """The address on which one of the clusters answers."""
        return f"{LOOPBACK}:{self.proxy.port}"

    def swap(self) -> None:
        """From now on the foreign cluster answers."""
        self.proxy.lead_to(LOOPBACK, self.foreign_port)

    def restore(self) -> None:
        """From now on the own cluster answers."""
        self.proxy.lead_to(LOOPBACK, self.own_port)


@contextlib.contextmanager
def two_clusters(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[TwoClusters]:
    """Both, running, with the pipeline's topics; gone at the end of the block. `more` are properties of the brokers."""
    own_port, foreign_port = unused(2)
    with (
        proxy_to(LOOPBACK, own_port) as proxy,
        kafka_server(folder / "own", more, _proxied(own_port, proxy.port)) as own,
        kafka_server(folder / "foreign", more, _proxied(foreign_port, proxy.port)) as foreign,
    ):
        brokers = Broker(own), Broker(foreign)
        for broker in brokers:
            broker.make_topics()
        yield TwoClusters(*brokers, proxy, own_port, foreign_port)


def _proxied(port: int, proxy_port: int) -> tuple[Listener, ...]:
    return (Listener("PROXIED", port, advertised_port=proxy_port),)
