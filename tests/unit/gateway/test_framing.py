"""The server frames streams of requests as h11 does, or refuses them; `make faults` tries many more."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.http_streams import by_h11, disagreement, running_server, streams


@pytest.fixture(scope="module")
def server():
    with running_server() as running:
        yield running


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=streams())
def test_streams_are_framed_as_h11_frames_them(server, pieces):
    assert disagreement(server, pieces) is None


GET = b"GET /a HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, GET + b"Host: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: \r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"),
        (400, POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (505, b"GET /\r\n\r\n"),
        (505, b"GET / HTTP/0.9\r\nHost: a\r\n\r\n"),
        (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
        (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (505, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
        (400, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\nHost: a\n"),
        (400, b"GET / HTTP/1.1\nHost: a\n\n"),
        (400, GET + b"X: a\r\n folded\r\n\r\n"),
        (400, POST + b"Content-Length: " + b"0" * 5000 + b"3\r\n\r\nabc"),
        (400, POST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"),
        (400, POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"),
    ],
    ids=repr,
)
def test_what_frames_a_request_in_doubt_is_refused(server, status, data):
    found = server.frame([data], is_ended=False)
    assert (found.frames, found.refusal) == ([], status)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_stream_in_small_pieces_is_the_same_stream(server, size):
    chunks = b"5;a=b\r\nabcde\r\n0\r\nX: y\r\n\r\n"
    data = (
        GET
        + b"\r\n"
        + POST
        + b"Content-Length: 4\r\n\r\nbody"
        + POST
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + chunks
        + GET
        + b"\r\n"
    )
    found = server.frame([data[at : at + size] for at in range(0, len(data), size)], is_ended=True)
    assert found.frames == by_h11(data).frames
    assert [body for _, _, body in found.frames] == [b"", b"body", b"abcde", b""]
