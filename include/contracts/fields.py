"""Fields of a topic's JSON value, and the formats of ids, times, dates, decimals and text."""

import datetime as dt
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, get_args

from include.contracts.errors import ContractMismatch

FieldType = Literal["long", "string", "timestamp", "decimal", "boolean", "date"]

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_ID = re.compile(rb"0|-?[1-9][0-9]{0,18}")

# Years of valid times. Python, PostgreSQL, Arrow and pandas, whose nanoseconds end in April 2262, can all represent
# such an instant, its day in every zone, and the days near it. Before 1970, time zone databases disagree.
FIRST_YEAR, LAST_YEAR = 1970, 2261
_DATE = (
    r"(19[7-9][0-9]|2[01][0-9][0-9]|22[0-5][0-9]|226[01])"
    r"-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
)


class Limit(NamedTuple):
    """A limit of a format that texts in common use exceed: `pattern` finds the part, `valid` is one within the limit.

    `pattern` and `valid` are arguments of `re.sub`.
    """

    pattern: str
    valid: str
    problem: str
    remedy: str


class TextFormat(NamedTuple):
    """A format of values that are JSON strings. `pattern` cannot tell whether a date exists.

    One expression serves all engines: Python's `re` in the gateway, RE2 in Arrow. RE2 has no look-ahead. `limits` are
    named in the reason of a refusal.
    """

    json_format: str | None
    pattern: str
    problem: str
    wanted: str
    limits: tuple[Limit, ...] = ()

    @property
    def remedy(self) -> str:
        """The remedy for a text of another format."""
        return f"give {self.wanted}"


# RFC 3339 with an explicit offset. Readers cut digits beyond microseconds, the resolution of PostgreSQL and Python.
TIMESTAMP = TextFormat(
    "date-time",
    rf"^{_DATE}[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?"
    r"([Zz]|[+-]((0[0-9]|1[0-3]):[0-5][0-9]|14:00))$",
    f"not an RFC 3339 time with an offset in the years {FIRST_YEAR} to {LAST_YEAR}",
    'a time such as "2026-11-20T09:30:00.000Z"',
    (
        Limit(
            r"^(.{17})60", r"\g<1>59",
            "second 60: databases cannot store leap seconds", "give second 59, or second 00 of the next minute",
        ),
        Limit(
            r"[+-](14:(0[1-9]|[1-5][0-9])|(1[5-9]|2[0-3]):[0-5][0-9])$", "Z",
            "an offset beyond 14 hours", "give an offset from -14:00 to +14:00, or the time in UTC with Z",
        ),
        Limit(
            r"\.[0-9]{10,}", ".0",
            "more than nine digits of a second", "give at most nine; readers keep six",
        ),
    ),
)  # fmt: skip
DATE = TextFormat(
    "date", f"^{_DATE}$", f"not a date in the years {FIRST_YEAR} to {LAST_YEAR}", 'a date such as "2026-11-20"'
)
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
    if key is None or not _ID.fullmatch(key):
        return None
    number = int(key)
    return number if LONG_MIN <= number <= LONG_MAX else None


def names_key(key: int, *fields: str) -> str:
    """Return the regular expression, for PostgreSQL and RE2, of a JSON text that has the key in one of the fields.

    JSON may have a letter of a name as an escape sequence, of which PostgreSQL's `encode` doubles the backslash.
    """
    names = ("".join(rf"({char}|\\+u00({ord(char):02x}|{ord(char):02X}))" for char in field) for field in fields)
    return rf'"({"|".join(names)})"\s*:\s*"?{key}([^0-9]|$)'


MAX_PRECISION = 38  # of decimals in Arrow


@cache
def decimal_format(precision: int, scale: int) -> TextFormat:
    """Return the format of decimals with at most `scale` digits after the point and `precision - scale` before it.

    They are plain digits without an exponent, a plus sign, leading zeros or a negative zero. Zeros at the end are
    allowed and not significant: "12.5" and "12.50" are the same value. Records that the pipeline writes have exactly
    `scale` digits after the point.
    """
    whole = precision - scale
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    forms = [rf"(0|-?[1-9][0-9]{{0,{whole - 1}}}){fraction}" if whole else f"0{fraction}"]
    # between -1 and 0: zeros, then a digit that is not zero
    forms += [rf"-0\.{'0' * zeros}[1-9][0-9]{{0,{scale - zeros - 1}}}" for zeros in range(scale)]
    digits = f"{whole} digits before the point and {scale} after it" if scale else f"{precision} digits"
    return TextFormat(
        None,
        f"^({'|'.join(forms)})$",
        f"not a decimal number of at most {digits}, without leading zeros",
        f'a string such as "{decimal_example(precision, scale)}"',
    )


def decimal_example(precision: int, scale: int) -> str:
    """Return a valid decimal: 1.50 where there is room for it."""
    return ("1" if precision > scale else "0") + ("." + "5".ljust(scale, "0") if scale else "")


def snake_case(name: str) -> str:
    """Return the relational name of a JSON name in camelCase."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


@dataclass(frozen=True)
class Field:
    """One field of a topic's JSON value.

    `name` is the JSON name (camelCase). `column` is its name among columns: of the output's fields that of PostgreSQL
    (snake_case), of other topics that of the stream's and the rebuild's tables, with an underscore behind it.
    `max_length` counts characters and is set for every string, `precision` and `scale` for every decimal. Decimals are
    JSON strings, since parsers of JSON numbers lose digits: see `decimal_format`. Dates are strings such as
    "2026-11-20".
    """

    name: str
    column: str
    type: FieldType
    description: str
    max_length: int | None = None
    nullable: bool = False
    personal: bool = False
    precision: int = 0
    scale: int = 0

    def __post_init__(self) -> None:
        """Raise ContractMismatch if the type is unknown, or its length, precision or scale is missing or wrong."""
        if self.type not in get_args(FieldType):
            raise self._mismatch(f"type={self.type!r}", f"use one of {', '.join(get_args(FieldType))}")
        if (self.type == "string") != (self.max_length is not None):
            raise self._mismatch(f"max_length={self.max_length}", "set it for a string, and for no other type")
        if self.max_length is not None and self.max_length < 1:
            raise self._mismatch(f"max_length={self.max_length}", "give a length of 1 or more")
        if self.type == "decimal":
            if not 1 <= self.precision <= MAX_PRECISION or not 0 <= self.scale <= self.precision:
                raise self._mismatch(
                    f"precision={self.precision}, scale={self.scale}",
                    f"give a precision of 1 to {MAX_PRECISION} and a scale of 0 to the precision",
                )
        elif self.precision or self.scale:
            raise self._mismatch(f"precision={self.precision}, scale={self.scale}", "set them only for a decimal")

    def _mismatch(self, state: str, remedy: str) -> ContractMismatch:
        return ContractMismatch(f"field {self.name} of type {self.type}: {state}; {remedy}")

    @property
    def text_format(self) -> TextFormat | None:
        """The format of a timestamp, decimal or date; None for types without one."""
        match self.type:
            case "timestamp":
                return TIMESTAMP
            case "date":
                return DATE
            case "decimal":
                return decimal_format(self.precision, self.scale)
        return None

    def json_schema(self) -> dict[str, object]:
        """Return the field as a JSON Schema (draft 2020-12)."""
        schema: dict[str, object] = {"description": self.description}
        if self.text_format is not None:
            schema["type"] = "string"
            if self.text_format.json_format is not None:
                schema["format"] = self.text_format.json_format
            schema["pattern"] = self.text_format.pattern
        elif self.type == "long":
            schema |= {"type": "integer", "minimum": LONG_MIN, "maximum": LONG_MAX}
        elif self.type == "boolean":
            schema["type"] = "boolean"
        else:
            schema |= {"type": "string", "maxLength": self.max_length, "pattern": TEXT_PATTERN}
        if self.nullable:
            schema["type"] = [schema["type"], "null"]
        return schema
