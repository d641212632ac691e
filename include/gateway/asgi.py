"""The HTTP that every call shares: heads, bodies, tokens and faults. Nothing of our own domain."""

import re
from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from include.contracts.validation import Violation, pointer_part, undecodable_violations
from include.gateway.answer import JSON, Answer

RETRY_AFTER = (b"retry-after", b"2")
_IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,200}")

Details = Sequence[Violation]

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


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
    return Fault(503, reason, (Violation("", reason, remedy),), (RETRY_AFTER,))


def error_body(error: str, details: Details) -> dict[str, object]:
    """The body of every fault."""
    return {"error": error, "details": shown(details)}


def pointer(name: str) -> str:
    """The JSON pointer of a top-level field; a long name is cut, so that it is no payload."""
    return "/" + pointer_part(name)


def shown(details: Details) -> list[dict[str, str]]:
    """Details as a body shows them."""
    return [{"pointer": one.pointer, "problem": one.problem, "remedy": one.remedy} for one in details]


class Head:
    """The request headers that matter here; empty when absent."""

    __slots__ = ("authorization", "content_encoding", "content_length", "content_type", "expect", "idempotency_key")

    def __init__(self) -> None:
        self.authorization = b""
        self.content_type = b""
        self.content_encoding = b""
        self.content_length = b""
        self.expect = b""
        self.idempotency_key: bytes | None = None

    def take(self, name: bytes, value: bytes) -> bool:
        """Note a header, its name in lower case. False for one that was there before and may be there once only."""
        field = _HEAD_FIELDS.get(name)
        if field is None:
            return True
        if getattr(self, field):
            return False
        setattr(self, field, value)
        return True


_HEAD_FIELDS = {name.replace("_", "-").encode(): name for name in Head.__slots__}


def read_head(scope: Scope) -> Head:
    """The head of a request; the server noted it."""
    head: Head = scope["state"]["head"]
    return head


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
    if head.idempotency_key is None:
        return None
    if not _IDEMPOTENCY_KEY.fullmatch(head.idempotency_key):
        raise fault(400, "", "not a usable Idempotency-Key", "send 1 to 200 visible ASCII characters, such as a UUID")
    return head.idempotency_key.decode("ascii")


def decode(body: bytes) -> object:
    """The JSON value. Raises Fault 400 for what is none, or none that could be passed on."""
    try:
        return _decode(body)
    except RecursionError as exc:
        raise fault(400, "", "the JSON is nested too deeply", "send flatter values") from exc
    except ValueError as exc:
        unwanted = undecodable_violations(body)
        if unwanted:
            raise Fault(400, "characters that cannot be stored", unwanted) from exc
        # the decoder's own words name a byte or a range, never the content
        reason = str(exc) if isinstance(exc, msgspec.MsgspecError) else "not UTF-8"
        remedy = "send one JSON value in UTF-8, without NaN, lone surrogates or numbers out of range"
        raise fault(400, "", f"not valid JSON: {reason}", remedy) from exc


def answer_of(refusal: Fault) -> Answer:
    """The answer that tells a fault."""
    body = encode(error_body(refusal.error, refusal.details))
    return Answer(refusal.status, body, (JSON, *refusal.headers))


def response_of(answer: Answer) -> Response:
    """An answer as Starlette gives it."""
    return Response(answer.body, answer.status, {name.decode(): value.decode() for name, value in answer.headers})
