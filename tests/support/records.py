"""Valid values of the topics of any pipeline, and their content as its view shows it."""

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from include.contracts.definition import Definition, Side
from include.contracts.fields import Field
from include.contracts.topics import Topic
from tests.fakes.events import AT

_FIRST_DATE = dt.date(2000, 1, 1)
_DATES = 10_000


def value_of(topic: Topic, key: int, number: int = 0, at: str = AT) -> dict[str, Any]:
    """Return a value whose other fields depend on the number; all its timestamps are `at`.

    Each nullable field is null for every third number.
    """
    return {field.name: _made(field, number, at) for field in topic.fields} | {topic.key_field: key}


def _made(field: Field, number: int, at: str) -> Any:
    if field.nullable and (number + len(field.name)) % 3 == 0:
        return None
    match field.type:
        case "long":
            return number
        case "string":
            return f"{number} 하늘 {field.name}"[: field.max_length]
        case "boolean":
            return number % 2 == 0
        case "decimal":
            return _decimal(number, field)
        case "date":
            return str(_FIRST_DATE + dt.timedelta(days=number % _DATES))
        case "timestamp":
            return at


def _decimal(number: int, field: Field) -> str:
    """Return a decimal of the field: every third one negative, every second one without zeros at its end."""
    whole = number % 10**field.precision
    text = f"{Decimal(-whole if number % 3 == 2 else whole).scaleb(-field.scale):f}"
    return text.rstrip("0").rstrip(".") if number % 2 and "." in text else text


def content(pipeline: Definition, side: Side, row: Mapping[str, Any]) -> str:
    """Return the columns of one side as JSON. `row`: a row of the view, by the names of its columns."""
    fields = [pipeline.output.field(column.output) for column in pipeline.columns if column.side == side]
    return json.dumps([_canonical(field, row[field.column]) for field in fields], ensure_ascii=False)


def content_of(pipeline: Definition, side: Side, value: Mapping[str, Any]) -> str:
    """Return the same for the value of a record."""
    columns = [column for column in pipeline.columns if column.side == side]
    return content(pipeline, side, {pipeline.column_name(each): value.get(each.source) for each in columns})


def _canonical(field: Field, value: Any) -> Any:
    """Return the same for a value that PostgreSQL returned as for the one in the record."""
    match field.type:
        case "decimal" if value is not None:
            return f"{Decimal(value):.{field.scale}f}"
        case "timestamp" if value is not None:
            at = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(value)
            return at.astimezone(dt.UTC).isoformat()
        case "date" if value is not None:
            return str(value)
    return value
