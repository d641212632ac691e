"""What a call is answered with."""

from dataclasses import dataclass

JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a body, and the headers besides those that frame the message."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
