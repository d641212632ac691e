"""HTTP answers and faults: status, body, and all headers but those that frame the message."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from include.contracts.validation import Violation, pointer_part

JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"2")

Headers = tuple[tuple[bytes, bytes], ...]
Details = Sequence[Violation]

encode = msgspec.json.Encoder().encode


@dataclass(slots=True)  # not frozen: that would cost each request half a microsecond
class Answer:
    """One HTTP answer. `headers` lacks those that frame the message, such as Content-Length."""

    status: int
    body: bytes
    headers: Headers = (JSON,)


def json_answer(content: object, status: int = 200) -> Answer:
    """Return `content` as a JSON answer."""
    return Answer(status, encode(content))


class Fault(Exception):
    """An error answer, raised to abort the handling of a request."""

    def __init__(self, status: int, error: str, details: Details = (), headers: Headers = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.details = details
        self.headers = headers


def fault(status: int, pointer: str, problem: str, remedy: str, headers: Headers = ()) -> Fault:
    """Return a fault with one detail; `problem` is both the error and the detail's problem."""
    return Fault(status, problem, (Violation(pointer, problem, remedy),), headers)


UNEXPECTED = fault(500, "", "the gateway failed", "retry; if the error persists, contact the gateway's operator")


def unavailable(reason: str) -> Fault:
    """Return a 503 with Retry-After: the event cannot be made durable now."""
    return fault(503, "", reason, "retry after the time in Retry-After", (RETRY_AFTER,))


def answer_of(refusal: Fault) -> Answer:
    """Return a fault as an answer."""
    body = encode({"error": refusal.error, "details": shown(refusal.details)})
    return Answer(refusal.status, body, (JSON, *refusal.headers))


def pointer(name: str) -> str:
    """Return the JSON pointer of a top-level field. A long name is truncated, so that answers never echo a payload."""
    return "/" + pointer_part(name)


def shown(details: Details) -> list[dict[str, str]]:
    """Return the details as they appear in a body."""
    return [{"pointer": one.pointer, "problem": one.problem, "remedy": one.remedy} for one in details]
