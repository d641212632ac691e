"""Clients that hold a server up: each costs little, ends in time, and others are answered meanwhile."""

import asyncio
import json
import socket
import struct
import time
from itertools import pairwise

import pytest

from include.gateway.http.message import ChunkedBody
from include.gateway.metrics import GatewayMetrics
from tests.fakes.events import board
from tests.fakes.harness import ADMIN_TOKEN, DATA_TOKEN
from tests.support.wire import EVENTS, against, error, event, request, until

UNKNOWN = b"GET /x HTTP/1.1\r\nHost: gateway\r\n\r\n"
HEALTH = request(method="GET", target="/healthz")
NOBODY = DATA_TOKEN.encode(), b"another"


def counting(gateway):
    """Count the requests that are handled."""
    handled, handle = [], gateway.server.application.handle

    async def count(call, body, request_id):
        handled.append(call.path)
        return await handle(call, body, request_id)

    gateway.server.application.handle = count
    return handled


async def busy(gateway, connect, count):
    """So many connections whose clients have a token and are not done with their request."""
    wires = [await connect() for _ in range(count)]
    for wire in wires:
        wire.send(request(event())[:-1])
    await until(lambda: sum(each.is_busy for each in gateway.server.connections) == count)
    return wires


def test_silent_connections_make_room_for_others_the_oldest_first():
    async def scenario(gateway, connect):
        silent = [await connect() for _ in range(8)]
        silent[1].send(request(event())[:40])  # a part of a head is not more than silence
        new = await connect()
        new.send(request(event()))
        answer = await new.answer()
        assert await silent[0].is_closed()
        silent[7].send(HEALTH)
        return answer[0], (await silent[7].answer())[0], gateway.server.evicted_connections

    assert against(scenario, max_connections=8) == (201, 200, 1)


def test_connection_of_a_client_with_a_token_goes_last():
    async def scenario(gateway, connect):
        known = await connect()
        known.send(request(event()))
        await known.answer()
        for _ in range(8):
            other = await connect()
            other.send(HEALTH)
            await other.answer()
        known.send(request(event()))
        return (await known.answer())[0], gateway.server.evicted_connections

    assert against(scenario, max_connections=4) == (201, 5)


def test_health_is_answered_while_all_connections_are_busy_and_nothing_else():
    async def scenario(gateway, connect):
        wires = await busy(gateway, connect, 4)
        answers = []
        for target in ("/healthz", "/readyz", "/metrics", "/schemas/board"):
            extra = await connect()
            extra.send(request(method="GET", target=target))
            status, headers, _ = await extra.answer()
            answers.append((status, headers["connection"]))
            assert await extra.is_closed()
        for wire in wires:
            wire.send(b"}")
            assert (await wire.answer())[0] == 201
        return answers, gateway.server.refused_connections

    answers, refused = against(scenario, max_connections=4)
    assert answers == [(200, "close")] * 3 + [(503, "close")]
    assert refused == 1


def test_extra_connections_have_their_own_limit():
    async def scenario(gateway, connect):
        await busy(gateway, connect, 2)
        for _ in range(20):
            await connect()
        last = await connect()
        last.send(HEALTH)
        status = (await last.answer())[0]
        return status, len(gateway.server.connections)

    status, count = against(scenario, max_connections=2, reserved_connections=3)
    assert (status, count <= 5) == (200, True)


def test_connection_that_stays_silent_is_closed_in_the_time_for_a_request():
    async def scenario(gateway, connect):
        wire = await connect()
        return await wire.is_closed()

    assert against(scenario, receive_timeout_s=0.2)


def test_wrong_token_is_answered_at_once_when_the_client_waits_to_continue():
    async def scenario(gateway, connect):
        wire = await connect()
        head, _, _ = request(event(), "Expect: 100-continue").replace(*NOBODY).partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        status, headers, body = await wire.answer()
        assert await wire.is_closed()
        return status, headers["connection"], error(body)

    assert against(scenario)[:2] == (401, "close")


@pytest.mark.parametrize("target", ["/x", EVENTS, "/members", "/healthz", "/fallback/replay"])
@pytest.mark.parametrize("coding", ["Content-Length: 3000", "Transfer-Encoding: chunked"])
def test_body_that_nobody_asked_for_is_never_held(target, coding):
    async def scenario(gateway, connect):
        wire = await connect()
        data = request(b"", coding, target=target).replace(*NOBODY)
        wire.send(data + b"800\r\n" + b"x" * 2048)
        await until(lambda: bool(gateway.server.connections))
        for _ in range(20):
            await asyncio.sleep(0)
            assert gateway.server.bytes_in_flight == 0
        if coding == "Transfer-Encoding: chunked":
            return (await wire.answer())[0]
        wire.send(b"x" * (3000 - 2048 - 5))
        return (await wire.answer())[0]

    assert against(scenario) in (200, 401, 404, 405)


def test_half_close_inside_a_second_request_does_not_cost_the_first_answer():
    async def scenario(gateway, connect):
        gateway.producer.is_up = False
        wire = await connect()
        wire.send(request(event()) + request(event())[:50])
        await until(lambda: gateway.services.counters.in_flight == 1)
        wire.end_sending()
        answer = await wire.answer()
        assert await wire.is_closed()
        return answer[0], len(gateway.store.rows)

    assert against(scenario) == (201, 1)


def test_half_close_behind_pipelined_requests_answers_all_of_them():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(event()) * 5)
        wire.end_sending()
        statuses = [(await wire.answer())[0] for _ in range(5)]
        assert await wire.is_closed()
        return statuses

    assert against(scenario) == [201] * 5


def test_no_further_request_is_begun_while_the_client_does_not_read():
    async def scenario(gateway, connect):
        handled = counting(gateway)
        wire = await connect()
        wire.stop_reading()
        for _ in range(200):
            wire.send(request(method="GET", target="/openapi.json") * 20)
            await asyncio.sleep(0)
        await until(lambda: any(each.unsent_bytes for each in gateway.server.connections))
        count = len(handled)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(handled) <= count + 1
        assert gateway.server.unsent_bytes < 1 << 20
        wire.go_on_reading()
        for _ in range(4000):
            assert (await wire.answer())[0] == 200
        return True

    assert against(scenario)


def test_client_that_never_reads_its_last_answer_is_left():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.stop_reading()
        wire.send(request(method="GET", target="/openapi.json") * 60)
        wire.send(request(json.dumps([board(title=7)] * 1000).encode(), "Connection: close"))
        await until(lambda: gateway.server.unsent_bytes > 0)
        await until(lambda: not gateway.server.connections)
        return True

    assert against(scenario, receive_timeout_s=0.3, socket_buffer_bytes=4096)


def test_answers_that_nobody_reads_have_a_limit_together():
    async def scenario(gateway, connect):
        wires = [await connect() for _ in range(12)]
        for wire in wires:
            wire.stop_reading()
            wire.send(request(method="GET", target="/openapi.json") * 200)
        await until(lambda: gateway.server.evicted_connections > 0)
        assert gateway.server.unsent_bytes <= gateway.server.limits.max_unsent_bytes
        new = await connect()
        new.send(request(event()))
        return (await new.answer())[0]

    assert against(scenario, max_unsent_bytes=300_000, socket_buffer_bytes=4096) == 201


def test_requests_behind_one_that_is_handled_wait_unread():
    async def scenario(gateway, connect):
        gateway.producer.is_up = False
        handled = counting(gateway)
        wire = await connect()
        wire.send(request(event()) + UNKNOWN * 100_000)
        await until(lambda: gateway.services.counters.in_flight == 1)
        [connection] = gateway.server.connections
        for _ in range(200):
            await asyncio.sleep(0)
            assert len(connection._unread) <= gateway.server.limits.read_bytes
        return handled

    assert against(scenario) == [EVENTS]


def test_listener_has_its_backlog():
    async def scenario(gateway, connect):
        listener = gateway.server._listener
        # of a listening socket, the kernel tells its backlog as `tcpi_sacked`
        return struct.unpack_from("I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)[0]

    assert against(scenario) == 2048


def test_connection_whose_time_cannot_be_checked_does_not_end_the_checks(caplog):
    async def scenario(gateway, connect):
        broken = await connect()
        await until(lambda: len(gateway.server.connections) == 1)
        [connection] = gateway.server.connections

        def explode(now):
            raise RuntimeError("the test says so")

        connection.check_time = explode
        slow = await connect()
        slow.send(request(event())[:-1])
        status = (await slow.answer())[0]
        return status, await broken.is_closed()

    assert against(scenario, receive_timeout_s=0.3) == (408, True)
    assert "the test says so" in caplog.text


def test_readiness_checks_the_store_once_a_second_however_often_it_is_asked():
    async def scenario(gateway, connect):
        checks, check = [], gateway.store.check

        async def counted():
            checks.append(1)
            return await check()

        gateway.store.check = counted
        wires = [await connect() for _ in range(4)]
        for wire in wires:
            wire.send(request(method="GET", target="/readyz") * 25)
        statuses = {(await wire.answer())[0] for wire in wires for _ in range(25)}
        return statuses, len(checks)

    statuses, count = against(scenario)
    assert statuses == {200}
    assert count <= 2


def test_byte_of_a_long_head_costs_no_more_than_one_of_a_short_head():
    async def scenario(gateway, connect):
        await connect()
        await until(lambda: bool(gateway.server.connections))
        [connection] = gateway.server.connections

        def drip(count):
            began_s = time.thread_time()
            for _ in range(count):
                gateway.server.read_buffer[0] = ord("x")
                connection.buffer_updated(1)
            return time.thread_time() - began_s

        gateway.server.read_buffer[:3] = b"X: "
        connection.buffer_updated(3)
        short_s = min(drip(500) for _ in range(4))
        drip(12_000)
        return min(drip(500) for _ in range(4)) / short_s

    assert against(scenario) < 4


def test_small_chunks_of_all_clients_together_leave_the_loop_idle_between_their_steps(monkeypatch):
    async def scenario(gateway, connect):
        steps, take = [], ChunkedBody.take

        def record(body, data):
            if body.content:  # the first step comes with the bytes
                steps.append(asyncio.get_running_loop().time())
            return take(body, data)

        monkeypatch.setattr(ChunkedBody, "take", record)
        clients = [await connect() for _ in range(8)]
        for each in clients:
            each.send(request(b"2\r\nxx\r\n" * 2_000 + b"0\r\n\r\n", "Transfer-Encoding: chunked"))
        statuses = {(await each.answer())[0] for each in clients}
        return statuses, len(steps) > 8 * 10, min(after - before for before, after in pairwise(steps)) > 0

    assert against(scenario) == ({400}, True, True)  # it is no JSON


def test_step_that_fails_does_not_hold_up_those_behind_it(caplog):
    async def scenario(gateway, connect):
        done = asyncio.Event()
        gateway.server.in_turn(lambda: 1 / 0)
        gateway.server.in_turn(done.set)
        await until(done.is_set)
        return True

    assert against(scenario)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("flaw", [b"A: b\nC: d", b"A: b\n\r\n", b"\nA: b"])
def test_bare_line_feed_is_refused_wherever_a_head_is_cut(size, flaw):
    async def scenario(gateway, connect):
        await connect()
        await until(lambda: bool(gateway.server.connections))
        [connection] = gateway.server.connections
        head = b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + flaw
        refused = []
        gateway.server.application.refused = refused.append
        for at in range(0, len(head), size):
            piece = head[at : at + size]
            gateway.server.read_buffer[: len(piece)] = piece
            connection.buffer_updated(len(piece))
        return refused

    assert against(scenario) == [400]


def test_readiness_is_answered_while_the_stores_disk_hangs():
    async def scenario(gateway, connect):
        hangs = asyncio.Event()
        gateway.store.check = hangs.wait
        wires = [await connect() for _ in range(3)]
        for wire in wires:
            wire.send(request(method="GET", target="/readyz"))
        answers = [await wire.answer() for wire in wires]
        hangs.set()
        return [(status, json.loads(body)["degraded"]) for status, _, body in answers]

    assert against(scenario) == [(200, ["the fallback store takes nothing"])] * 3


def test_page_of_metrics_is_not_made_anew_for_each_pipelined_request(monkeypatch):
    made = []
    page = GatewayMetrics.page
    monkeypatch.setattr(GatewayMetrics, "page", lambda metrics: made.append(1) or page(metrics))

    async def scenario(gateway, connect):
        loop = asyncio.get_running_loop()
        began = loop.time()
        wire = await connect()
        wire.send(request(method="GET", target="/metrics") * 500)
        statuses = {(await wire.answer())[0] for _ in range(500)}
        return statuses, loop.time() - began

    statuses, took_s = against(scenario)
    assert statuses == {200}
    assert len(made) <= 1 + took_s / 0.1


def test_admin_token_counts_as_known():
    async def scenario(gateway, connect):
        known = await connect()
        known.send(request(method="GET", target="/fallback").replace(DATA_TOKEN.encode(), ADMIN_TOKEN.encode()))
        await known.answer()
        for _ in range(3):
            await connect()
        known.send(HEALTH)
        return (await known.answer())[0]

    assert against(scenario, max_connections=2) == 200
