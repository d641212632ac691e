"""The pipeline, defined once as data. Every job, DAG, query and page reads it, and so does the schema."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from include.contracts.fields import Field
from include.contracts.topics import Topic

FOLDER = Path(__file__).resolve().parents[1] / "pipelines"  # of the definitions, each in NAME.toml
SITE_NAME = "board_detail"  # of the pipeline that the tables of the site's API feed; the default of PIPELINES

Side = Literal["stream", "table"]

_POSTGRES_TYPES = {
    "long": "bigint",
    "string": "text",
    "timestamp": "timestamptz",
    "boolean": "boolean",
    "date": "date",
}


def definitions_folder() -> Path:
    """Return the folder of the definitions: DEFINITIONS_DIR, which also has board_detail.toml, else FOLDER."""
    return Path(os.environ.get("DEFINITIONS_DIR") or FOLDER)


def postgres_type(field: Field) -> str:
    """Return the PostgreSQL type of a field."""
    if field.type == "decimal":
        return f"numeric({field.precision},{field.scale})"
    return _POSTGRES_TYPES[field.type]


@dataclass(frozen=True)
class Column:
    """A column of the result: its side, its source field and its output field."""

    side: Side
    source: str
    output: str


@dataclass(frozen=True)
class Definition:
    """A stream joined with a table, delivered to a topic and a relational view.

    `join_field` is the stream's field that holds the table's key; `day_field` places a stream record in a day. The
    topics' own `version_field` orders versions.
    """

    name: str
    stream: Topic
    table: Topic
    output: Topic
    join_field: str
    day_field: str
    columns: tuple[Column, ...]

    def column_name(self, column: Column) -> str:
        """Return the relational name of a column."""
        return self.output.field(column.output).column

    @property
    def relational_columns(self) -> tuple[str, ...]:
        """The relational names of the result's columns, in order."""
        return tuple(self.column_name(column) for column in self.columns)

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The relational names of the columns from the table's side."""
        return tuple(self.column_name(column) for column in self.columns if column.side == "table")

    @property
    def personal_columns(self) -> tuple[str, ...]:
        """The relational names of the columns with personal values, which the masked view masks."""
        return tuple(field.column for field in self.output.fields if field.personal)

    @property
    def key_column(self) -> str:
        """The relational name of the output's key."""
        return self.output.key_column

    @property
    def join_column(self) -> str:
        """The relational name of the output's field that holds the table's key."""
        return self._output_of(self.join_field).column

    @property
    def join_names(self) -> tuple[str, ...]:
        """The JSON names of the field that holds the table's key: in the stream's topic, and in the output topic."""
        return self.join_field, self._output_of(self.join_field).name

    @property
    def version_column(self) -> str:
        """The relational name of the output's version field."""
        return self.output.version_column

    @property
    def day_column(self) -> str:
        """The relational name of the output's field that places a record in a day."""
        return self._output_of(self.day_field).column

    def day_field_of(self, topic: Topic) -> Field:
        """Return the field of the stream's topic, or of the output topic, that places a record in a day."""
        return topic.field(self.day_field) if topic is self.stream else self._output_of(self.day_field)

    def _output_of(self, stream_field: str) -> Field:
        sources = {(column.side, column.source): column.output for column in self.columns}
        return self.output.field(sources["stream", stream_field])

    def postgres_type(self, column: str) -> str:
        """Return the PostgreSQL type of a relational column. Raises KeyError."""
        for field in self.output.fields:
            if field.column == column:
                return postgres_type(field)
        raise KeyError(f"{self.name} has no column {column}")
