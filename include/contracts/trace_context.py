"""The trace to which a record belongs: `traceparent` of W3C Trace Context, as a header of requests and of records.

`tracestate` is not passed on: it holds data of the tracing systems before, which nothing here reads.
"""

import re
from typing import NamedTuple

SAMPLED = 0x01  # flag: the caller records its spans of this trace

RECORD_PATTERN = r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"  # as the gateway writes it; *join* passes on no other

_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_MAX_LENGTH = 512  # bytes; versions to come may append fields
_KNOWN_FLAGS = 0x03  # sampled, random trace id; others are reserved and must be sent as zero


class TraceContext(NamedTuple):
    """A span of a trace: 32 and 16 lower-case hex digits, neither all zero, and the flags."""

    trace_id: str
    span_id: str
    flags: int

    @property
    def is_sampled(self) -> bool:
        """True if the caller records its spans of this trace."""
        return bool(self.flags & SAMPLED)

    @property
    def header(self) -> bytes:
        """The value of a header `traceparent`, in version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}".encode()


def parse(value: bytes | None) -> TraceContext | None:
    """Return the context of a header's value; None if the standard says that the value is to be ignored.

    Of a version after 00, only the fields of version 00 count.
    """
    if value is None or len(value) > _MAX_LENGTH:
        return None
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest is not None) or not trace_id.strip(b"0"):
        return None
    if not span_id.strip(b"0"):
        return None
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16) & _KNOWN_FLAGS)
