"""Fields of a JSON value: the smallest piece of a contract."""

from dataclasses import dataclass
from typing import Literal

FieldType = Literal["long", "string", "timestamp"]

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

# RFC 3339 with an explicit offset; at most microseconds, because PostgreSQL and Python keep no more.
# One expression for both readers: Python's `re` at the gateway, Java's regex in Spark.
TIMESTAMP_PATTERN = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])$"
)


# Unicode's control characters (Cc) but for TAB, LF and CR: nobody types them, logs and terminals obey them, and
# PostgreSQL cannot store the first. Written as Python, Java and JSON Schema all read it.
_CONTROL_CHARACTERS = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f"
CONTROL_PATTERN = f"[{_CONTROL_CHARACTERS}]"
TEXT_PATTERN = f"^[^{_CONTROL_CHARACTERS}]*$"


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
        """The field as a JSON Schema (draft 2020-12)."""
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
