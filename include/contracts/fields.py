"""Fields of a topic's JSON value, and the formats of ids, times and text."""

import datetime as dt
import re
from dataclasses import dataclass
from typing import Literal

FieldType = Literal["long", "string", "timestamp"]

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_DECIMAL = re.compile(rb"0|-?[1-9][0-9]{0,18}")

# Years of valid times. Python, PostgreSQL, Arrow and pandas, whose nanoseconds end in April 2262, can all represent
# such an instant, its day in every zone, and the days near it. Before 1970, time zone databases disagree.
FIRST_YEAR, LAST_YEAR = 1970, 2261
# RFC 3339 with an explicit offset and at most microseconds, the resolution of PostgreSQL and Python.
# One expression for all engines: Python's `re` in the gateway, Java's regex in Spark, RE2 in Arrow.
TIMESTAMP_PATTERN = (
    r"^(19[7-9][0-9]|2[01][0-9][0-9]|22[0-5][0-9]|226[01])"
    r"-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])$"
)
TIMESTAMP_PROBLEM = f"not an RFC 3339 time with an offset in the years {FIRST_YEAR} to {LAST_YEAR}"
TIMESTAMP_REMEDY = 'give a time such as "2026-11-20T09:30:00.000Z"'
# The same bounds for numeric instants, such as Kafka's timestamps, which producers set.
FIRST_INSTANT = dt.datetime(FIRST_YEAR, 1, 1, tzinfo=dt.UTC)
END_INSTANT = dt.datetime(LAST_YEAR + 1, 1, 1, tzinfo=dt.UTC)


# Unicode's control characters (Cc) except TAB, LF and CR: they have no use in text, logs and terminals interpret them,
# and PostgreSQL cannot store U+0000. The notation is valid in Python, Java and JSON Schema.
_CONTROL_CHARACTERS = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"
CONTROL_PATTERN = f"[{_CONTROL_CHARACTERS}]"
TEXT_PATTERN = f"^[^{_CONTROL_CHARACTERS}]*$"


def record_id(key: bytes | None) -> int | None:
    """Return the id in a record's key; None unless the key is a 64-bit integer in canonical decimal digits."""
    if key is None or not _DECIMAL.fullmatch(key):
        return None
    number = int(key)
    return number if LONG_MIN <= number <= LONG_MAX else None


@dataclass(frozen=True)
class Field:
    """One field of a topic's JSON value.

    `name` is the JSON name (camelCase), `column` its name in the relational tables (snake_case).
    `max_length` counts characters and is set for every string.
    """

    name: str
    column: str
    type: FieldType
    description: str
    max_length: int | None = None
    nullable: bool = False
    personal: bool = False

    def json_schema(self) -> dict[str, object]:
        """Return the field as a JSON Schema (draft 2020-12)."""
        schema: dict[str, object] = {"description": self.description}
        if self.type == "long":
            schema |= {"type": "integer", "minimum": LONG_MIN, "maximum": LONG_MAX}
        elif self.type == "timestamp":
            schema |= {"type": "string", "format": "date-time", "pattern": TIMESTAMP_PATTERN}
        else:
            schema |= {"type": "string", "maxLength": self.max_length, "pattern": TEXT_PATTERN}
        if self.nullable:
            schema["type"] = [schema["type"], "null"]
        return schema
