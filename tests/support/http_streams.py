"""Generates streams of pipelined requests, valid and invalid, and frames them with h11 and the gateway's server."""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import h11
import uvloop
from hypothesis import strategies as st

from include.gateway.http.message import Answer, Headers, Limits, Request
from include.gateway.http.server import Server

LIMITS = Limits(max_body_bytes=1 << 16, receive_timeout_s=20.0, max_connections=1024, max_in_flight_bytes=128 << 20)
_TIMEOUT_S = 10.0
_HANDLED_S = 0.001

Frame = tuple[bytes, bytes, bytes]  # method, target, body


@dataclass(frozen=True)
class Framed:
    """The requests that were found in a stream, and the status of the refusal that ended it, if any."""

    frames: list[Frame]
    refusal: int | None
    starts: list[int] = field(default_factory=list)  # of each request, and of what is behind the last
    is_left_open: bool = False  # nothing more came, and no end


# --- streams

_METHODS = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"FOO", b"CONNECT", b"PRI", b"get", b""]
)
_TARGETS = st.sampled_from(
    [b"/", b"/a/b?c=d", b"*", b"http://h/x", b"a", b"//", b"/%00", b"", b"/\x7f", b"/ x", b"/#f"]
)
_VERSIONS = st.sampled_from(
    [b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"http/1.1", b"HTTP/1.1 ", b""]
)
_ENDS = st.sampled_from([b"\r\n"] * 30 + [b"\n", b"\r", b"\r\r\n", b"\r\n "])
_HEADERS = st.sampled_from(
    rb"""Host: a|Host: b|Host:|Host : a|X: y|X:\ty \t|X: a\0b|X: a\1b|X: \377|X\377: a|X|: a| folded
    |Content-Length: 3|Content-Length: 3, 3|Content-Length: +3|Content-Length: 0x3|Content-Length:|Content-Length: 003
    |Content-Length: 4|Content-Length: 99999999999999999999999|Transfer-Encoding: chunked|Transfer-Encoding: CHUNKED
    |Transfer-Encoding: gzip, chunked|Transfer-Encoding: chunked, chunked|Transfer-Encoding:
    |Transfer-Encoding: \13chunked|TE: trailers|Connection: close|Connection: keep-alive|Connection: Upgrade
    |Upgrade: h2c|Expect: 100-continue|Expect: else|Authorization: Bearer a|Content-Type: application/json
    |Trailer: X""".replace(b"\n    ", b"")
    .decode("unicode_escape")
    .encode("latin-1")
    .split(b"|")
)
_CONTENT = st.sampled_from([b"", b"abc", b"0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"x" * 300, b"\r\n"])
_CHUNK_HEADS = st.sampled_from(
    [b"%x"] * 20 + [b"%X", b"0%x", b"%x;a=b", b'%x;a="b\\""', b"%x ", b"0x%x", b"-%x", b"%x;\x01", b" %x"]
)
_TRAILERS = st.sampled_from([b""] * 10 + [b"X: y\r\n", b"Content-Length: 3\r\n", b"Host: b\r\n", b"X y\r\n", b"X: y\n"])
_EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([b"", b"\r", b"\n", b" ", b"\x00", b"\t", b":", b"0", b"\xff"])),
    max_size=2,
)


_ODD_CODINGS = st.sampled_from(
    [b"gzip, chunked"] * 3 + [b"chunked, gzip", b"gzip", b"x-chunked", b"chunked ;a", b"CHUNKED"]
)
_ODD_SPACES = st.sampled_from([b"  ", b"\t", b""])
_ODDITIES = st.sampled_from([""] * 5 + ["space", "gap", "coding", "field", "chunk"])


@st.composite
def _chunked(
    draw: st.DrawFn,
    heads: st.SearchStrategy[bytes],
    ends: st.SearchStrategy[bytes],
    trailers: st.SearchStrategy[bytes],
) -> bytes:
    body = b""
    for content in draw(st.lists(_CONTENT.filter(bool), max_size=3)):
        body += draw(heads) % len(content) + draw(ends) + content + draw(ends)
    return body + draw(heads) % 0 + draw(ends) + draw(trailers) + draw(ends)


_RIGHT_CHUNKS = _chunked(st.just(b"%x"), st.just(b"\r\n"), st.just(b""))
_ODD_CHUNKS = _chunked(_CHUNK_HEADS, _ENDS, _TRAILERS)


@st.composite
def _plain_request(draw: st.DrawFn) -> bytes:
    """A request that is valid, or has exactly one fault, so no other fault can cause its refusal."""
    method, odd = draw(st.sampled_from([b"GET", b"POST", b"PUT"])), draw(_ODDITIES)
    first, second = draw(_ODD_SPACES) if odd == "space" else b" ", draw(_ODD_SPACES) if odd == "gap" else b" "
    head = method + first + b"/a" + second + b"HTTP/1.1\r\nHost: a\r\n"
    if odd == "field":
        head += draw(_HEADERS) + b"\r\n"
    body = "chunks" if odd in ("coding", "chunk") else draw(st.sampled_from(["none", "length", "chunks"]))
    if body == "none":
        return head + b"\r\n"
    if body == "length":
        content = draw(_CONTENT)
        return head + b"Content-Length: %d\r\n\r\n" % len(content) + content
    coding = draw(_ODD_CODINGS) if odd == "coding" else b"chunked"
    chunks = draw(_ODD_CHUNKS if odd == "chunk" else _RIGHT_CHUNKS)
    return head + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + chunks


@st.composite
def _odd_request(draw: st.DrawFn) -> bytes:
    line = b" ".join(draw(st.tuples(_METHODS, _TARGETS, _VERSIONS)))
    lines = [line, *draw(st.lists(_HEADERS, max_size=5))]
    if draw(st.integers(0, 3)):
        lines.insert(1, b"Host: a")
    return b"".join(each + draw(_ENDS) for each in lines) + draw(_ENDS) + draw(st.one_of(_CONTENT, _ODD_CHUNKS))


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """A stream, in the pieces that it is sent in; one in four ends inside a request."""
    data = b"".join(
        draw(st.lists(st.one_of(_plain_request(), _plain_request(), _odd_request()), min_size=1, max_size=4))
    )
    for place, edit in [] if draw(st.integers(0, 2)) else draw(_EDITS):
        at = int(place * len(data))
        data = data[:at] + edit + data[at + draw(st.integers(0, 1)) :]
    if draw(st.integers(0, 3)) == 3:
        data = data[: int(draw(st.floats(0, 1)) * len(data))]
    cuts = sorted({int(place * len(data)) for place in draw(st.lists(st.floats(0, 1), max_size=4))})
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# --- h11


def by_h11(data: bytes) -> Framed:
    """Return h11's framing of a stream that ends after these bytes."""
    frames, starts = list[Frame](), [0]
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LIMITS.max_head_bytes)
    connection.receive_data(data)
    method = target = body = b""
    try:
        while True:
            event = connection.next_event()
            match event:
                case h11.Request():
                    method, target, body = event.method, event.target, b""
                case h11.Data():
                    body += bytes(event.data)
                case h11.EndOfMessage():
                    frames.append((method, target, body))
                    starts.append(len(data) - len(connection.trailing_data[0]))
                    connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
                    connection.send(h11.EndOfMessage())
                    if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                        return Framed(frames, None, starts)
                    connection.start_next_cycle()
                case _:
                    return Framed(frames, None, starts)
    except h11.RemoteProtocolError as exc:
        return Framed(frames, exc.error_status_hint, starts)


# Input that h11 accepts and the server refuses, so that no proxy can read it differently.
STRICTER = {
    "bare line feed": re.compile(rb"(?<!\r)\n"),
    "folded line": re.compile(rb"\r\n[ \t]"),
    "control character": re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]"),
    "method": re.compile(rb"\A(?!(GET|POST|HEAD|PUT|DELETE|OPTIONS) )"),
    "target": re.compile(rb"\A\w+ (?!/|\*|http://)"),
    "version": re.compile(rb"\A\w+ \S+ HTTP/(?!1\.[01]\r)"),
    "another protocol": re.compile(rb"(?i)\r\nupgrade:"),
    "two lengths": re.compile(rb"(?is)\ncontent-length:(.*\ncontent-length:|.*\ntransfer-encoding:|[^\r]*,)"),
    "length of chunks": re.compile(rb"(?is)\r\ntransfer-encoding:.*\r\ncontent-length:"),
    "field given twice": re.compile(rb"(?i)\r\n(authorization|content-type|expect):(?s:.*)\r\n\1:"),
    "space or extension of a chunk": re.compile(rb"\r\n[0-9a-fA-F]+([ \t]|;)"),
    "transfer coding of an older version": re.compile(rb"(?is)\A[^\r]*HTTP/1\.0\r\n.*transfer-encoding"),
}  # fmt: skip


def why_stricter(request: bytes) -> list[str]:
    """Return the names of the rules above that the request violates."""
    return [name for name, rule in STRICTER.items() if rule.search(request)]


# --- the server


@dataclass(frozen=True)
class _Seen:
    request: Request
    takes_body: bool = True
    is_known: bool = True
    is_vital: bool = False


class Recorder:
    """An application that answers each request with how it was framed."""

    def admit(self, request: Request) -> _Seen:
        return _Seen(request)

    async def handle(self, call: _Seen, body: bytes, request_id: str) -> Answer:
        await asyncio.sleep(_HANDLED_S)  # so that what is sent meanwhile, or the end, comes before the answer
        frame = (call.request.method, call.request.target, body)
        return Answer(200, b" ".join(part.hex().encode() or b"-" for part in frame), ())

    def origin_headers(self, origin: bytes) -> Headers:
        return ()

    def refused(self, status: int) -> None:
        pass

    def answered(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class RunningServer:
    """The server over a recorder, on a port."""

    port: int

    def frame(self, pieces: Sequence[bytes], is_ended: bool) -> Framed:
        """Return the server's framing of a stream. `is_ended`: shut down the sending side afterwards."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):  # it may have refused the first of them, and closed
                for piece in pieces:
                    client.sendall(piece)
                if is_ended:
                    client.shutdown(socket.SHUT_WR)
            received, is_left_open = b"", False
            try:
                while data := client.recv(1 << 16):
                    received += data
            except TimeoutError:
                is_left_open = True
            except ConnectionError:
                pass  # it refused, and closed on what still came
        return replace(_read(received), is_left_open=is_left_open)


def _read(received: bytes) -> Framed:
    frames = list[Frame]()
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 100:
            continue
        length = int(re.findall(rb"content-length: (\d+)", head)[0])
        if status != 200:
            return Framed(frames, status)
        if received[:1] in b"0123456789abcdef-" and len(received) >= length and not received.startswith(b"HTTP"):
            body, received = received[:length], received[length:]
            method, target, content = (bytes.fromhex(part.decode().strip("-")) for part in body.split(b" "))
            frames.append((method, target, content))
        else:
            frames.append((b"HEAD", b"", b""))  # an answer without its body
    return Framed(frames, None)


@contextlib.contextmanager
def running_server() -> Iterator[RunningServer]:
    """The server in a thread, on the product's event loop."""
    loop: asyncio.AbstractEventLoop | None = None
    ready, ports = threading.Event(), list[int]()

    async def serve() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server = Server(Recorder(), LIMITS)
        await server.start(listener)
        ports.append(listener.getsockname()[1])
        ready.set()
        try:
            await ended.wait()
        finally:
            await server.quiesce(0)
            server.close()

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(_TIMEOUT_S)
    try:
        yield RunningServer(ports[0])
    finally:
        assert loop is not None
        loop.call_soon_threadsafe(ended.set)
        thread.join(_TIMEOUT_S)


def disagreement(server: RunningServer, pieces: Sequence[bytes]) -> str | None:
    """Return the difference between the server and h11 for a stream; None if they agree."""
    data = b"".join(pieces)
    reference = by_h11(data)
    found = server.frame(pieces, is_ended=reference.refusal is None)
    expected = [frame if frame[0] != b"HEAD" else (b"HEAD", b"", b"") for frame in reference.frames]
    count = len(found.frames)
    if found.frames != expected[:count]:
        return f"framed otherwise: {found.frames} for {expected}"
    if found.refusal in (408, 500):
        return f"answered {found.refusal}"
    if found.is_left_open:
        return f"neither answered nor closed; h11: {reference.refusal}"
    if count == len(expected):
        if reference.refusal is not None and found.refusal is None:
            return f"taken, refused by h11 with {reference.refusal}"
        if found.refusal is not None and not data[reference.starts[-1] :]:
            return f"refused with {found.refusal}, and nothing was there"
        return None  # what h11 still waited for the end of may be refused sooner
    refused = data[reference.starts[count] : reference.starts[count + 1]]
    if found.refusal is None:
        return f"closed without an answer: {refused!r}"
    return None if why_stricter(refused) else f"refused with {found.refusal}, taken by h11: {refused!r}"
