"""Answers, and the faults among them: their status, their body, and the headers besides those that frame a message."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from include.contracts.validation import Violation, pointer_part

JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"2")

Headers = tuple[tuple[bytes, bytes], ...]
Details = Sequence[Violation]

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body, and the headers besides those that frame the message."""

    status: int
    body: bytes
    headers: Headers = (JSON,)


def json_answer(content: object, status: int = 200) -> Answer:
    """An answer in JSON."""
    return Answer(status, encode(content))


class Fault(Exception):
    """An answer other than the one the sender hoped for."""

    def __init__(self, status: int, error: str, details: Details = (), headers: Headers = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.details = details
        self.headers = headers


def fault(status: int, pointer: str, problem: str, remedy: str, headers: Headers = ()) -> Fault:
    """A fault with one detail, whose problem is the error itself."""
    return Fault(status, problem, (Violation(pointer, problem, remedy),), headers)


UNEXPECTED = fault(500, "", "the gateway failed", "try again; if it stays so, tell the gateway's operator")


def unavailable(reason: str, remedy: str = "try again after the time in Retry-After") -> Fault:
    """503: nothing durable takes it now."""
    return fault(503, "", reason, remedy, (RETRY_AFTER,))


def answer_of(refusal: Fault) -> Answer:
    """The answer that tells a fault."""
    body = encode({"error": refusal.error, "details": shown(refusal.details)})
    return Answer(refusal.status, body, (JSON, *refusal.headers))


def pointer(name: str) -> str:
    """The JSON pointer of a top-level field; a long name is cut, so that it is no payload."""
    return "/" + pointer_part(name)


def shown(details: Details) -> list[dict[str, str]]:
    """Details as a body shows them."""
    return [{"pointer": one.pointer, "problem": one.problem, "remedy": one.remedy} for one in details]
