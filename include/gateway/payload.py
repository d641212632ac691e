"""Decodes JSON bodies within the gateway's limits."""

from collections.abc import Iterator

import msgspec

from include.contracts.validation import encoding_violation, undecodable_violations
from include.gateway.http.answer import Fault, fault
from include.runtime.settings import GatewayLimits

_decode = msgspec.json.Decoder().decode
_PIECE_BYTES = 1 << 16  # scanned at a time: a body with too many parts is refused without scanning the rest
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[{:'))


def decode(body: bytes, limits: GatewayLimits) -> object:
    """Return the decoded value.

    Raises Fault 400 if the body is not valid JSON or has characters that cannot be stored, 413 if it has too many
    objects, arrays or fields.
    """
    if _is_large(body, limits):
        containers = fields = 0
        for marks in iter_structure(body):
            containers += marks.count(b"{") + marks.count(b"[")
            fields += marks.count(b":")
            _require(containers, limits.max_containers, "objects and arrays")
            _require(fields, limits.max_fields, "fields")
    try:
        return _decode(body)
    except RecursionError as exc:
        raise fault(400, "", "the JSON is nested too deeply", "send flatter values") from exc
    except ValueError as exc:
        require_json(body)
        unwanted = undecodable_violations(body)
        if unwanted:
            raise Fault(400, "characters that cannot be stored", unwanted) from exc
        # safe to show: msgspec's message names a position or a range, never the content
        reason = str(exc) if isinstance(exc, msgspec.MsgspecError) else "not UTF-8"
        remedy = "send one JSON value in UTF-8, without NaN, lone surrogates or numbers out of range"
        raise fault(400, "", f"not valid JSON: {reason}", remedy) from exc


def require_json(body: bytes) -> None:
    """Raise Fault 400 if the first bytes of a body say that it is something else than JSON in UTF-8."""
    if other := encoding_violation(body):
        raise Fault(400, other.problem, (other,))


def iter_structure(text: bytes, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
    """Yield the opening brackets and colons outside the strings of a JSON text, one bytes object per piece of the text.

    Works on bulk byte operations and decodes no value.
    """
    start, is_inside = 0, 0
    while start < len(text):
        piece = text[start : start + piece_bytes]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the piece ends inside an escape sequence
            piece = text[start : start + piece_bytes + 1]
        start += len(piece)
        unescaped = piece.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = unescaped.translate(None, _NOT_STRUCTURE).replace(b'""', b"")  # pairs cancel out
        parts = marks.split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside = (is_inside + len(parts) - 1) % 2


def _is_large(body: bytes, limits: GatewayLimits) -> bool:
    # counts strings too, so it may be a false alarm; nearly every body is below, most by their length alone
    if len(body) <= limits.max_containers:
        return False
    return body.count(b"{") + body.count(b"[") > limits.max_containers or body.count(b":") > limits.max_fields


def _require(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise fault(413, "", f"more than {limit} {what}", "send fewer events at a time, or plainer ones")
