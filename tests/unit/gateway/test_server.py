"""The server's caps and manners, on real sockets and the product's own event loop; what is behind it is fake."""

import asyncio
import errno
import gc
import json
import socket

import pytest

from tests.fakes.events import board, keys_of
from tests.fakes.harness import DATA_TOKEN
from tests.support.wire import TIMEOUT_S, against, error, event, request, until


def test_connection_carries_request_after_request():
    async def scenario(gateway, connect):
        wire = await connect()
        for _ in range(3):
            wire.send(request(event()))
            status, headers, body = await wire.answer()
            assert (status, headers["content-type"], json.loads(body)["keptIn"]) == (201, "application/json", "kafka")
        return len(gateway.producer.records)

    assert against(scenario) == 3


def test_pipelined_requests_are_answered_in_their_order():
    async def scenario(gateway, connect):
        wire = await connect()
        parts = [request(event(), f"Idempotency-Key: k{n}") for n in range(60)]
        parts[7:7] = [request(method="GET", target="/healthz"), request(b"{")]
        wire.send(b"".join(parts))
        answers = [await wire.answer() for _ in range(62)]
        return answers, dict(zip(keys_of(gateway.producer.records), gateway.producer.event_ids(), strict=True))

    answers, event_ids = against(scenario)
    assert [status for status, _, _ in answers] == [201] * 7 + [200, 400] + [201] * 53
    kept = [json.loads(body)["eventId"] for status, _, body in answers if status == 201]
    assert kept == [event_ids[f"k{n}"] for n in range(60)]


def test_request_that_arrives_byte_by_byte_is_the_same_request():
    async def scenario(gateway, connect):
        wire = await connect()
        for byte in request(event(title="제목")):
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        return await wire.answer()

    assert against(scenario)[0] == 201


def test_chunked_body_is_taken():
    async def scenario(gateway, connect):
        wire = await connect()
        body = event()
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:40], body[40:])) + b"0\r\n\r\n"
        wire.send(request(chunks, "Transfer-Encoding: chunked"))
        return await wire.answer()

    assert against(scenario)[0] == 201


@pytest.mark.parametrize("sent", [b"", b"POST /to", request(event())[:-5]], ids=["nothing", "in head", "in body"])
def test_slow_sender_is_told_so_and_left(sent):
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(sent)
        if not sent:
            wire.send(request(event())[:10])
        status, headers, body = await wire.answer()
        assert headers["connection"] == "close"
        assert await wire.is_closed()
        return status, error(body)

    status, problem = against(scenario, receive_timeout_s=0.2)
    assert status == 408
    assert "0.2 s" in problem


def test_slow_sender_who_sends_a_little_now_and_then_has_no_more_time():
    async def scenario(gateway, connect):
        wire = await connect()
        trickle = asyncio.create_task(send_slowly(wire, request(event())))
        status, _, _ = await wire.answer()
        trickle.cancel()
        return status

    async def send_slowly(wire, data):
        for byte in data:
            wire.send(bytes([byte]))
            await asyncio.sleep(0.05)

    assert against(scenario, receive_timeout_s=0.5) == 408


@pytest.mark.parametrize("pieces", [1, 40])
def test_head_beyond_its_cap_is_431(pieces):
    async def scenario(gateway, connect):
        wire = await connect()
        data = request(event(), "X-Long: " + "x" * 20_000)
        size = len(data) // pieces
        for start in range(0, len(data), size):
            wire.send(data[start : start + size])
            await asyncio.sleep(0.001)
        return await wire.answer()

    status, _, body = against(scenario)
    assert status == 431
    assert "16384" in error(body)


def test_many_headers_count_together():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(event(), *[f"X-{n}: {'y' * 100}" for n in range(300)]))
        return await wire.answer()

    assert against(scenario)[0] == 431


def test_body_too_large_by_its_declared_length_is_refused_before_it_is_sent():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(b"", "Content-Length: 4194305"))
        return await wire.answer()

    status, headers, body = against(scenario)
    assert (status, headers["connection"]) == (413, "close")
    assert "4194304" in error(body)


def test_chunked_body_too_large_is_refused_and_the_sender_hears_it_while_still_sending():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(b"", "Transfer-Encoding: chunked"))
        for _ in range(200):
            wire.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        return await wire.answer()

    assert against(scenario, max_body_bytes=50_000)[0] == 413


def test_connections_beyond_the_cap_are_503_while_all_are_busy():
    async def scenario(gateway, connect):
        first, second = await connect(), await connect()
        for wire in (first, second):
            wire.send(request(event())[:-1])
        await until(lambda: sum(each.is_busy for each in gateway.server.connections) == 2)
        third = await connect()
        third.send(request(event()))
        refused = await third.answer()
        assert await third.is_closed()
        first.vanish()
        await until(lambda: len(gateway.server.connections) < 2)
        fourth = await connect()
        fourth.send(request(event()))
        second.send(b"}")
        return refused, await fourth.answer(), await second.answer(), gateway.server.refused_connections

    refused, fourth, second, count = against(scenario, max_connections=2)
    assert (refused[0], refused[1]["retry-after"]) == (503, "2")
    assert (fourth[0], second[0], count) == (201, 201, 1)


def test_bytes_in_flight_beyond_the_cap_are_503_and_room_comes_back():
    async def scenario(gateway, connect):
        body = event(body="x" * 3000)
        waiting = await connect()
        waiting.send(request(body)[:-1])
        await until(lambda: gateway.server.bytes_in_flight > 3000)
        other = await connect()
        other.send(request(body))
        refused = await other.answer()
        waiting.vanish()
        await until(lambda: gateway.server.bytes_in_flight == 0)
        again = await connect()
        again.send(request(body))
        return refused, await again.answer()

    refused, again = against(scenario, max_in_flight_bytes=4000)
    assert (refused[0], refused[1]["retry-after"]) == (503, "2")
    assert again[0] == 201


def test_array_of_several_megabytes_goes_through():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(json.dumps([board(body="x" * 4000)] * 900).encode()))
        return await wire.answer(), len(gateway.producer.records)

    (status, _, _), count = against(scenario)
    assert (status, count) == (200, 900)


def test_sender_without_a_token_is_refused_before_its_body_is_held():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(event()).replace(DATA_TOKEN.encode(), b"another"))
        refused = await wire.answer()
        half = await connect()
        half.send(request(event(body="x" * 2000)).replace(DATA_TOKEN.encode(), b"another")[:-10])
        await until(lambda: any(each.is_busy for each in gateway.server.connections))
        assert gateway.server.bytes_in_flight == 0
        half.vanish()
        wire.send(request(event()))
        return refused, await wire.answer(), gateway.services.counters.answered_with_fault

    refused, accepted, faults = against(scenario)
    challenge = 'bearer error="invalid_token", error_description="no valid token"'
    assert (refused[0], refused[1]["www-authenticate"]) == (401, challenge)
    assert accepted[0] == 201  # the connection goes on
    assert faults == {401: 1}


def test_expect_continue_is_answered_before_the_body():
    async def scenario(gateway, connect):
        wire = await connect()
        data = request(event(), "Expect: 100-continue")
        head, _, body = data.partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        first = await wire.answer(has_body=False)
        wire.send(body)
        return first[0], (await wire.answer())[0]

    assert against(scenario) == (100, 201)


@pytest.mark.parametrize(
    ("headers", "version"), [(("Connection: close",), "1.1"), ((), "1.0"), (("Connection: keep-alive",), "1.0")]
)
def test_connection_that_is_not_kept_is_closed_after_its_answer(headers, version):
    async def scenario(gateway, connect):
        answers = []
        for sent in (request(event(), *headers, version=version), health):
            wire = await connect()
            wire.send(sent + health)  # the second of them is not answered
            answers.append(await wire.answer())
            assert await wire.is_closed()
        return answers

    health = request(b"", *headers, method="GET", target="/healthz", version=version)
    answers = against(scenario)
    assert [(status, headers["connection"]) for status, headers, _ in answers] == [(201, "close"), (200, "close")]


def test_client_that_ends_its_side_still_gets_its_answer():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(event()))
        wire.end_sending()
        answer = await wire.answer()
        assert await wire.is_closed()
        return answer[0]

    assert against(scenario) == 201


def test_head_has_the_length_and_no_body():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(method="HEAD", target="/healthz") + request(method="GET", target="/healthz"))
        head = await wire.answer(has_body=False)
        return head, await wire.answer()

    head, got = against(scenario)
    assert head[0] == got[0] == 200
    assert int(head[1]["content-length"]) == len(got[2])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        ("two lengths", request(event(), "Content-Length: 3", "Content-Length: 4")),
        ("length and chunks", request(event(), "Content-Length: 3", "Transfer-Encoding: chunked")),
        ("two tokens", request(event(), "Authorization: Bearer other")),
        ("two keys", request(event(), "Idempotency-Key: a", "Idempotency-Key: b")),
        ("upgrade", request(b"", "Connection: Upgrade", "Upgrade: websocket", method="GET", target="/healthz")),
        ("tunnel", b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n"),
        ("path that is no UTF-8", request(method="GET", target="/%ff%fe")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_usable_request_is_400(name, data):
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(data)
        status, _, body = await wire.answer()
        return status, error(body), gateway.producer.records

    status, problem, records = against(scenario)
    assert (status, records) == (400, [])
    assert problem


@pytest.mark.parametrize("target", ["/topics/board/events?x=1", "/topics/%62oard/events", "//gateway/x"])
def test_other_spellings_of_a_call_are_the_same_call_or_none(target):
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(event(), target=target))
        return (await wire.answer())[0]

    assert against(scenario) == (404 if "//" in target else 201)


def test_wrong_method_of_the_hot_call_names_the_right_one():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(method="GET"))
        return await wire.answer()

    status, headers, body = against(scenario)
    assert (status, headers["allow"]) == (405, "post")
    assert error(body)


def test_event_of_a_client_that_vanished_is_kept_all_the_same():
    async def scenario(gateway, connect):
        gateway.producer.is_up = False
        wire = await connect()
        wire.send(request(event(), "Idempotency-Key: gone"))
        await until(lambda: gateway.services.counters.in_flight == 1)
        wire.vanish()
        await until(lambda: gateway.store.backlog().waiting == 1)
        return keys_of([gateway.store.rows[0].record])

    assert against(scenario) == ["gone"]


def test_client_that_does_not_read_its_answers_is_left():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.stop_reading()
        for _ in range(400):
            wire.send(request(method="GET", target="/schemas/board") * 50)
            await asyncio.sleep(0)
        await until(lambda: not gateway.server.connections)

    against(scenario, receive_timeout_s=0.3)


def test_ending_lets_what_is_on_its_way_finish_and_takes_nothing_new():
    async def scenario(gateway, connect):
        gateway.producer.is_up = False
        idle, busy = await connect(), await connect()
        await until(lambda: len(gateway.server.connections) == 2)
        busy.send(request(event()))
        await until(lambda: gateway.services.counters.in_flight == 1)
        ended = asyncio.create_task(gateway.server.quiesce(TIMEOUT_S))
        assert await idle.is_closed()
        status, headers, _ = await busy.answer()
        assert await ended
        with pytest.raises(OSError, match=r"."):
            await connect()
        return status, headers["connection"]

    assert against(scenario) == (201, "close")


def test_ending_gives_up_on_a_sender_that_never_finishes():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(b"POST /to")
        await until(lambda: any(each.is_busy for each in gateway.server.connections))
        return await gateway.server.quiesce(0.05)

    assert against(scenario) is False


def test_a_head_that_comes_again_is_a_request_of_its_own():
    async def scenario(gateway, connect):
        first, second = await connect(), await connect()
        ids = []
        for number in range(1, 4):
            for wire in (first, second):
                wire.send(request(event(title=f"{number}")))
            for wire in (first, second):
                status, headers, body = await wire.answer()
                assert status == 201
                ids += [headers["x-request-id"], json.loads(body)["eventId"]]
        heads = len(gateway.server._heads)
        titles = sorted(json.loads(record.value)["title"] for record in gateway.producer.records)
        return heads, titles, len(set(ids))

    assert against(scenario) == (1, ["1", "1", "2", "2", "3", "3"], 12)


def test_a_known_head_is_admitted_anew():
    async def scenario(gateway, connect):
        wire = await connect()
        wire.send(request(event()))
        before, _, _ = await wire.answer()
        gateway.services.tokens._known.clear()  # as a reload after the token was removed
        wire.send(request(event()))
        after, _, _ = await wire.answer()
        return before, after

    assert against(scenario) == (201, 401)


def test_heads_are_kept_of_clients_that_are_known_and_in_bounds():
    async def scenario(gateway, connect):
        wire = await connect()
        for number in range(5):
            wire.send(request(event(), f"X-Number: {number}").replace(DATA_TOKEN.encode(), b"not-a-token"))
            assert (await wire.answer())[0] == 401
            wire.send(request(method="GET", target="/healthz"))
            assert (await wire.answer())[0] == 200
        wire.send(request(event(), "X-Long: " + "x" * 2000))
        assert (await wire.answer())[0] == 201
        body = event()
        wire.send(request(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), "Transfer-Encoding: chunked"))
        assert (await wire.answer())[0] == 201
        kept = len(gateway.server._heads)
        most = 0
        for number in range(1500):
            wire.send(request(event(), f"Idempotency-Key: {number}"))
            assert (await wire.answer())[0] == 201
            most = max(most, len(gateway.server._heads))
        return kept, most

    assert against(scenario) == (0, 1024)


def clients_of(gateway, count):
    """Connections that wait in the kernel, made without a turn of the event loop."""
    address = gateway.server._listener.getsockname()
    return [socket.create_connection(address) for _ in range(count)]


def test_many_waiting_connections_are_accepted_at_once():
    async def scenario(gateway, connect):
        clients = clients_of(gateway, 50)
        for _ in range(10):  # turns of the loop: a socket is opened in some turns, by a task of its own
            await asyncio.sleep(0)
        found = gateway.server.open_connections
        for client in clients:
            client.close()
        return found

    assert against(scenario) == 50


def test_accepting_goes_on_after_file_descriptors_ran_out(monkeypatch, caplog):
    monkeypatch.setattr("include.gateway.http.server._EXHAUSTED_S", 0.05)

    async def scenario(gateway, connect):
        listener, failures = gateway.server._listener, [errno.EMFILE, errno.ECONNABORTED]

        class Exhausted:
            def accept(self):
                if failures:
                    raise OSError(failures.pop(0), "as the kernel says")
                return listener.accept()

            def __getattr__(self, name):
                return getattr(listener, name)

        gateway.server._listener = Exhausted()
        wire = await connect()
        wire.send(request(event()))
        return (await wire.answer())[0]

    assert against(scenario) == 201
    assert "no connection can be accepted for 0.05 s: as the kernel says" in caplog.text


def test_no_connection_is_accepted_once_the_server_quiesces():
    async def scenario(gateway, connect):
        address = gateway.server._listener.getsockname()
        await gateway.server.quiesce(1.0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    against(scenario)


def test_a_flood_of_silent_clients_evicts_none_before_it_is_read():
    async def scenario(gateway, connect):
        [sender] = clients_of(gateway, 1)
        sender.sendall(request(event()))
        strangers = clients_of(gateway, 1100)
        sender.setblocking(False)
        async with asyncio.timeout(TIMEOUT_S):
            answered = await asyncio.get_running_loop().sock_recv(sender, 1000)
        for client in (sender, *strangers):
            client.close()
        return answered

    assert against(scenario).startswith(b"HTTP/1.1 201")


@pytest.mark.parametrize("turns", range(12))
def test_an_event_that_is_kept_while_the_server_quiesces_is_answered(turns):
    async def scenario(gateway, connect):
        clients = clients_of(gateway, 20)
        for client in clients:
            client.sendall(request(event()))
            client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await gateway.server.quiesce(TIMEOUT_S)
        for _ in range(10):
            await asyncio.sleep(0)
        answered = 0
        for client in clients:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    answered += bool(await asyncio.get_running_loop().sock_recv(client, 1000))
            except ConnectionError:
                pass  # closed unread
            client.close()
        return answered, len(gateway.producer.records), gateway.server.open_connections

    answered, kept, left = against(scenario)
    assert answered == kept
    assert left == 0


def test_requests_are_freed_without_the_collector():
    names = ("Connection", "Request", "ChunkedBody", "MeasuredBody", "HttpRequestParser", "Fault")
    refused = request(b"", "Transfer-Encoding: chunked").replace(DATA_TOKEN.encode(), b"not-a-token")
    unwanted = request(event()).replace(DATA_TOKEN.encode(), b"not-a-token")

    def alive():
        return sum(type(each).__name__ in names for each in gc.get_objects())

    async def scenario(gateway, connect):
        body = event()
        taken = request(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), "Transfer-Encoding: chunked")
        gc.disable()
        try:
            before = alive()
            for _ in range(20):
                cut = (taken[:-30], request(event())[:-30], unwanted[:-30], request(event())[:30])
                for each in (taken, request(event()), refused, unwanted, b"GET / HTTP/1.0\r\nx\r\n\r\n", *cut):
                    wire = await connect()
                    wire.send(each)
                    if each in cut:
                        await asyncio.sleep(0.001)
                    else:
                        await wire.answer()
                    wire.vanish()
            await until(lambda: gateway.server.open_connections == 0)
            return alive() - before
        finally:
            gc.enable()

    assert against(scenario) <= 2  # the kept head
