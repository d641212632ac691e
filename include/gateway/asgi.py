"""The HTTP that every call shares: heads, bodies, tokens, answers and faults. ASGI only, nothing of our own domain."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from starlette.types import Receive, Scope, Send

from include.contracts.validation import Violation
from include.gateway.limits import MAX_BODY_BYTES

_DRAINED_BYTES = 4 * MAX_BODY_BYTES  # of a body too large: read and dropped, so that the sender hears the answer
_RECEIVE_TIMEOUT_S = 10.0
_POINTER_LENGTH = 64
_IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,200}")

Access = Literal["data", "admin"]
Details = Sequence[Violation]

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

JSON = (b"content-type", b"application/json")


class Fault(Exception):
    """An answer other than the one the sender hoped for."""

    def __init__(
        self, status: int, error: str, details: Details = (), headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.details = details
        self.headers = headers


def fault(status: int, pointer: str, problem: str, remedy: str) -> Fault:
    """A fault with one detail, whose problem is the error itself."""
    return Fault(status, problem, (Violation(pointer, problem, remedy),))


UNEXPECTED = fault(500, "", "the gateway failed", "try again; if it stays so, tell the gateway's operator")


def unavailable(reason: str, remedy: str = "try again after the time in Retry-After") -> Fault:
    """503: nothing durable takes it now."""
    return Fault(503, reason, (Violation("", reason, remedy),), ((b"retry-after", b"2"),))


def error_body(error: str, details: Details) -> dict[str, object]:
    """The body of every fault."""
    return {"error": error, "details": shown(details)}


def pointer(name: str) -> str:
    """The JSON pointer of a top-level field; a long name is cut, so that it is no payload."""
    return "/" + name[:_POINTER_LENGTH].replace("~", "~0").replace("/", "~1")


def shown(details: Details) -> list[dict[str, str]]:
    """Details as a body shows them."""
    return [{"pointer": one.pointer, "problem": one.problem, "remedy": one.remedy} for one in details]


@dataclass(slots=True)
class Head:
    """The request headers that matter here; empty when absent."""

    authorization: bytes = b""
    content_type: bytes = b""
    content_encoding: bytes = b""
    content_length: bytes = b""
    idempotency_key: bytes = b""


_HEAD_FIELDS = {
    b"authorization": "authorization",
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"content-length": "content_length",
    b"idempotency-key": "idempotency_key",
}


def read_head(scope: Scope) -> Head:
    """The head of a request."""
    head = Head()
    for name, value in scope["headers"]:
        field = _HEAD_FIELDS.get(name)
        if field is not None:
            setattr(head, field, value)
    return head


class Tokens:
    """Who may do what. Only hashes are kept; an empty token leaves its calls open (loopback only, see __main__)."""

    def __init__(self, data: str, admin: str) -> None:
        self._hashes: dict[Access, bytes | None] = {"data": _sha256(data), "admin": _sha256(admin)}

    def require(self, head: Head, access: Access) -> None:
        """Raises Fault 401 for no token or an unknown one, 403 for one that is good for other calls."""
        wanted = self._hashes[access]
        if wanted is None:
            return
        scheme, _, token = head.authorization.partition(b" ")
        presented = hashlib.sha256(token).digest()
        if hmac.compare_digest(presented, wanted) and scheme.lower() == b"bearer":
            return
        known = [hmac.compare_digest(presented, other) for other in self._hashes.values() if other is not None]
        if any(known) and scheme.lower() == b"bearer":
            raise fault(403, "", "this token is not for this call", f"use the {access} token")
        refusal = fault(401, "", "no valid token", f"send Authorization: Bearer with the {access} token")
        refusal.headers = ((b"www-authenticate", b"Bearer"),)
        raise refusal


def _sha256(token: str) -> bytes | None:
    return hashlib.sha256(token.encode()).digest() if token else None


def require_json(head: Head) -> None:
    """Raises Fault 415 for a body that is not declared as plain JSON in UTF-8."""
    kind, _, parameters = head.content_type.lower().partition(b";")
    charset = parameters.strip().removeprefix(b"charset=").strip(b'"')
    if kind.strip() != b"application/json" or charset not in (b"", b"utf-8"):
        raise fault(415, "", "the body is not declared as JSON", "send Content-Type: application/json")
    if head.content_encoding not in (b"", b"identity"):
        raise fault(415, "", "the body is encoded", "send it without Content-Encoding")


def idempotency_key(head: Head) -> str | None:
    """The sender's key, if any. Raises Fault 400 for one that could not be a header of the record."""
    if not head.idempotency_key:
        return None
    if not _IDEMPOTENCY_KEY.fullmatch(head.idempotency_key):
        raise fault(400, "", "not a usable Idempotency-Key", "send 1 to 200 visible ASCII characters, such as a UUID")
    return head.idempotency_key.decode("ascii")


async def read_body(receive: Receive, head: Head) -> bytes:
    """The whole body. Raises Fault 413 when it is too large, 408 when it is too slow, 400 when the sender went away."""
    if head.content_length.isdigit() and int(head.content_length[:20]) > MAX_BODY_BYTES:
        await _drop(receive)
        raise _too_large()
    message = await receive()
    if message["type"] != "http.request":
        raise fault(400, "", "the connection ended before the body", "send the whole body")
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        return body
    return await _read_rest(receive, body)


async def _read_rest(receive: Receive, first: bytes) -> bytes:
    chunks, size, more = [first], len(first), True
    try:
        async with asyncio.timeout(_RECEIVE_TIMEOUT_S):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise fault(400, "", "the connection ended before the body", "send the whole body")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                more = message.get("more_body", False)
                if size > MAX_BODY_BYTES:
                    if more:
                        await _drop(receive)
                    raise _too_large()
    except TimeoutError as exc:
        slow = fault(408, "", f"the body took longer than {_RECEIVE_TIMEOUT_S:.0f} s", "send it faster")
        slow.headers = ((b"connection", b"close"),)
        raise slow from exc
    return b"".join(chunks)


async def _drop(receive: Receive) -> None:
    dropped, more = 0, True
    try:
        async with asyncio.timeout(_RECEIVE_TIMEOUT_S):
            while more and dropped < _DRAINED_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                more = message["type"] == "http.request" and message.get("more_body", False)
    except TimeoutError:
        return  # the answer goes out all the same


def _too_large() -> Fault:
    refusal = fault(413, "", f"the body is larger than {MAX_BODY_BYTES} bytes", "send fewer events at a time")
    refusal.headers = ((b"connection", b"close"),)
    return refusal


def decode(body: bytes) -> object:
    """The JSON value. Raises Fault 400 for what is none, or none that could be passed on."""
    try:
        return _decode(body)
    except RecursionError as exc:
        raise fault(400, "", "the JSON is nested too deeply", "send flatter values") from exc
    except ValueError as exc:
        # the decoder's own words name a byte or a range, never the content
        reason = str(exc) if isinstance(exc, msgspec.MsgspecError) else "not UTF-8"
        remedy = "send one JSON value in UTF-8, without NaN, lone surrogates or numbers out of range"
        raise fault(400, "", f"not valid JSON: {reason}", remedy) from exc


async def respond(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (JSON,)) -> None:
    """Send an answer."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_fault(send: Send, refusal: Fault) -> None:
    """Send a fault."""
    body = encode(error_body(refusal.error, refusal.details))
    await respond(send, refusal.status, body, (JSON, *refusal.headers))
