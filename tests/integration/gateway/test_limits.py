"""Each bound of the HTTP server is exceeded, alone and all together: memory stays within them, and others are answered.

The real gateway as a process, without a broker: what it accepts goes to its fallback store.
"""

import pytest

from include.gateway.app import server_limits
from include.runtime.settings import GatewayLimits
from tests.fakes.events import board
from tests.support import hostile
from tests.support.gateway_process import GatewayProcess
from tests.support.hostile import Hostile, resident_bytes
from tests.support.http import HTTP

LIMITS = server_limits(GatewayLimits())
SLACK = 24 << 20  # of the allocator, and of 1,000 connections that do nothing
EVENT = {"json": board(), "headers": {"Authorization": "Bearer data-token"}}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    process = GatewayProcess.over(tmp_path_factory.mktemp("limits"), "127.0.0.1:9").start()
    yield process
    process.kill()


class Watched:
    """The gateway's memory, and a client that pays, on a connection of its own for each call."""

    def __init__(self, gateway):
        self._gateway = gateway
        self.answers = []
        self.ask()
        self._before = self._most = resident_bytes(gateway.process.pid)

    def ask(self):
        for method, path, options in (("POST", "/topics/board/events", EVENT), ("GET", "/healthz", {})):
            response = HTTP.request(method, self._gateway.url + path, timeout=10, **options)
            self.answers.append(response.status_code)

    def look(self):
        self._most = max(self._most, resident_bytes(self._gateway.process.pid))

    @property
    def growth(self):
        self.look()
        return self._most - self._before

    @property
    def was_answered(self):
        return set(self.answers) == {200, 201}


def pipelined(clients):
    clients.send([hostile.UNKNOWN * 600_000])
    return LIMITS.read_bytes + LIMITS.write_buffer_bytes


def pipelined_and_read(clients):
    clients.send([hostile.UNKNOWN * 60_000], reads=True)
    return LIMITS.read_bytes + LIMITS.write_buffer_bytes


def never_reading(clients):
    clients.send([hostile.LARGE_ANSWER * 4_000] * 400)
    return LIMITS.max_unsent_bytes


def small_chunks(clients):
    clients.send([hostile.two_byte_chunks(LIMITS.max_body_bytes // 2)])
    return LIMITS.max_body_bytes // 2


def bodies_of_nobody(clients):
    paths = (b"/x", b"/topics/board/events", b"/healthz", b"/members")
    clients.send([hostile.unfinished_body(paths[n % 4], LIMITS.max_body_bytes) for n in range(28)])
    return 0


def heads_without_end(clients):
    count = LIMITS.max_connections + LIMITS.reserved_connections
    clients.send([hostile.unfinished_head(LIMITS.max_head_bytes)] * count)
    return LIMITS.max_connections * LIMITS.max_head_bytes


def silent(clients):
    clients.connect(LIMITS.max_connections + 100)
    return 0


ALL = [pipelined, pipelined_and_read, never_reading, small_chunks, bodies_of_nobody, heads_without_end, silent]


@pytest.mark.parametrize("exceed", ALL, ids=lambda exceed: exceed.__name__)
def test_exceeding_a_bound_costs_no_more_memory_than_it_says(gateway, exceed):
    watched = Watched(gateway)
    with Hostile(gateway.url) as clients:
        allowed = exceed(clients)
        watched.ask()
        growth = watched.growth
    assert watched.was_answered, watched.answers
    assert growth <= allowed + SLACK, f"{growth >> 20} MiB"


def test_exceeding_all_bounds_at_once_costs_no_more_than_they_say_together(gateway):
    watched = Watched(gateway)
    with Hostile(gateway.url) as clients:
        allowed = 0
        for exceed in ALL:
            allowed += exceed(clients)
            watched.ask()
            watched.look()
    assert watched.was_answered, watched.answers
    assert watched.growth <= allowed + SLACK, f"{watched.growth >> 20} MiB"
    again = Watched(gateway)
    with Hostile(gateway.url) as clients:
        for exceed in ALL:
            exceed(clients)
            again.look()
    assert again.growth <= SLACK, f"{again.growth >> 20} MiB more the second time"
