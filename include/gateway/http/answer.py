"""HTTP answers and faults: status, body, and all headers but those that frame the message."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"2")

Headers = tuple[tuple[bytes, bytes], ...]


class JsonBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A body in JSON. Its schema comes from its annotations."""


class Problem(Protocol):
    """Part of an error: where in the body, what is wrong, and how to correct it."""

    @property
    def pointer(self) -> str:
        """A JSON pointer; empty for the whole."""
        ...

    @property
    def problem(self) -> str:
        """The error."""
        ...

    @property
    def remedy(self) -> str:
        """The way to correct it."""
        ...


class Detail(JsonBody):
    """One problem."""

    pointer: Annotated[str, Meta(description="Empty for the whole.", extra_json_schema={"format": "json-pointer"})]
    problem: Annotated[str, Meta(min_length=1, description="What is wrong.")]
    remedy: Annotated[str, Meta(min_length=1, description="How to correct it.")]


ErrorText = Annotated[str, Meta(min_length=1)]
Details = Annotated[list[Detail], Meta(min_length=1)]


class Error(JsonBody):
    """The request failed, for these reasons."""

    error: ErrorText
    details: Details


encode = msgspec.json.Encoder().encode


@dataclass(slots=True)  # not frozen: that would cost each request half a microsecond
class Answer:
    """One HTTP answer. `headers` lacks those that frame the message, such as Content-Length."""

    status: int
    body: bytes
    headers: Headers = (JSON,)


class Fault(Exception):
    """An error answer, raised to abort the handling of a request."""

    def __init__(self, status: int, error: str, details: Sequence[Problem] = (), headers: Headers = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.details = details
        self.headers = headers


def fault(status: int, pointer: str, problem: str, remedy: str, headers: Headers = ()) -> Fault:
    """Return a fault with one detail; `problem` is both the error and the detail's problem."""
    return Fault(status, problem, (Detail(pointer, problem, remedy),), headers)


def unavailable(reason: str) -> Fault:
    """Return a 503 with Retry-After: the same request may succeed later."""
    return fault(503, "", reason, "retry after the time in Retry-After", (RETRY_AFTER,))


def answer_of(refusal: Fault) -> Answer:
    """Return a fault as an answer."""
    body = encode(Error(refusal.error, details_of(refusal.details)))
    return Answer(refusal.status, body, (JSON, *refusal.headers))


def details_of(problems: Sequence[Problem]) -> list[Detail]:
    """Return problems as they appear in a body."""
    return [Detail(one.pointer, one.problem, one.remedy) for one in problems]
