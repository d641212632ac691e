"""Names what a value is that is not JSON because of its first bytes. Gateway and readers say the same of it.

Senders that write by another encoder do not see what it adds. A decoder only says that the first character is wrong.
"""

from include.contracts.validation import Violation

_BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (b"\xef\xbb\xbf", "begins with a byte order mark", "send the JSON text without it"),
    (b"\xff\xfe", "UTF-16 with a byte order mark", "send the text in UTF-8"),
    (b"\xfe\xff", "UTF-16 with a byte order mark", "send the text in UTF-8"),
    (b"{\x00", "UTF-16", "send the text in UTF-8"),
    (b"[\x00", "UTF-16", "send the text in UTF-8"),
    (b"\x00{\x00", "UTF-16", "send the text in UTF-8"),
    (b"\x00[\x00", "UTF-16", "send the text in UTF-8"),
    (b"\x1f\x8b", "compressed with gzip", "send the text uncompressed"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "send the text uncompressed"),
    (b"\x00", "begins with a zero byte, as the serializers of a schema registry write it",
     "send the JSON text alone, without the schema's id before it"),
)  # fmt: skip


def encoding_violation(value: bytes) -> Violation | None:
    """Return what a value is that is not JSON in UTF-8, by its first bytes; None if they do not tell."""
    for beginning, problem, remedy in _BEGINNINGS:
        if value.startswith(beginning):
            return Violation("", f"not JSON: {problem}", remedy)
    return None
