"""Makes the events of any pipeline from the types in its definition, with different keys for each run."""

import datetime as dt
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from include.contracts.clock import rfc3339
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.fields import Field
from include.contracts.topics import Topic

_HOUR = 9  # of the stream's records


@dataclass(frozen=True)
class GeneratedRecords:
    """Makes values for one run of the story; `day` is the day that will be rebuilt."""

    pipeline: Definition
    day: Day
    first_key: int

    @classmethod
    def begun_now(cls, pipeline: Definition, day: Day) -> "GeneratedRecords":
        """Return records whose keys start at the present millisecond, so that runs do not share keys."""
        return cls(pipeline, day, time.time_ns() // 1_000_000)

    def key(self, number: int) -> int:
        """Return the key of the record with that number, from 0."""
        return self.first_key + number

    def stream_value(self, number: int, of: int) -> dict[str, Any]:
        """Return a record of the stream, joined by the table's record of the number `of`."""
        value = self._value(self.pipeline.stream, number, _HOUR)
        return value | {self.pipeline.join_field: self.key(of), self.pipeline.day_field: self._at(_HOUR)}

    def table_value(self, number: int, hour: int = 1) -> dict[str, Any]:
        """Return the version of a table's record of that hour. Its fields differ from those of other hours."""
        return self._value(self.pipeline.table, number, hour)

    def row(self, number: int, of: int, hour: int) -> dict[str, Any]:
        """Return the row of a record, as PostgreSQL returns it, joined with that hour's version of the table's record.

        It has no personal columns, which analysts see masked.
        """
        values = {"stream": self.stream_value(number, of), "table": self.table_value(of, hour)}
        columns = {self.pipeline.column_name(column): column for column in self.pipeline.columns}
        return {
            name: _as_row(self.pipeline.output.field(column.output), values[column.side][column.source])
            for name, column in columns.items()
            if name not in self.pipeline.personal_columns
        }

    def _value(self, topic: Topic, number: int, hour: int) -> dict[str, Any]:
        value = {field.name: self._field(field, 24 * number + hour) for field in topic.fields}
        return value | {topic.key_field: self.key(number), topic.version_field: self._at(hour)}

    def _field(self, field: Field, seed: int) -> Any:
        match field.type:
            case "long":
                return seed
            case "string":
                return f"{seed} {field.name}"[: field.max_length]
            case "boolean":
                return seed % 2 == 0
            case "decimal":
                digits = str(seed)[-(field.precision or 0) :]
                return str(Decimal(digits).scaleb(-(field.scale or 0)))
            case "date":
                return str(self.day.date + dt.timedelta(days=seed % 365))
            case "timestamp":
                return self._at(seed % 24)

    def _at(self, hour: int) -> str:
        return rfc3339(self.day.start + dt.timedelta(hours=hour))


def _as_row(field: Field, value: Any) -> Any:
    match field.type:
        case "decimal":
            return Decimal(value)
        case "date":
            return dt.date.fromisoformat(value)
        case "timestamp":
            return dt.datetime.fromisoformat(value)
        case _:
            return value
