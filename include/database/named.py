"""Named queries: each statement stands in a file of queries/, under its name, with bound parameters only.

`-- name: NAME` begins a statement. `{{name}}` in it stands for a list of columns of the pipeline definition; nothing
else is ever put into the text.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.definition import Definition

QUERIES = Path(__file__).parent / "queries"

# The origin of a served row: the same in every table that holds rows of the result.
COORDINATES = {
    "event_id": ("text", "Identity of the event: the client's Idempotency-Key, else made by the gateway."),
    "stream_partition": ("integer", "Partition of the {{stream}} record this row was made from."),
    "stream_offset": ("bigint", "Offset of the {{stream}} record this row was made from."),
    "table_partition": ("integer", "Partition of the {{table}} record this row was made from."),
    "table_offset": ("bigint", "Offset of the {{table}} record this row was made from."),
    "kafka_partition": ("integer", "Partition of the first {{output}} record of this version; null if none."),
    "kafka_offset": ("bigint", "Offset of the first {{output}} record of this version; null if none."),
}

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
# A personal text in the masked view: its last two characters, if it has more than four. PostgreSQL evaluates more than
# ten operators after a sort with LIMIT, so a query of the newest rows masks these alone.
_MASKED = (
    "repeat('*', char_length({0}) - 2 * (char_length({0}) > 4)::integer)"
    " || right({0}, 2 * (char_length({0}) > 4)::integer)"
)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


class PipelineConnection(Connection):  # type: ignore[misc]
    """A connection to the database of a pipeline, or to one of none: statements with placeholders are not for that."""

    pipeline: Definition | None = None


def query(name: str, of: Cursor | Definition) -> str:
    """Return the named statement for a pipeline, or for the pipeline of a cursor's connection.

    Raises KeyError for an unknown name or placeholder.
    """
    return _filled(name, of if isinstance(of, Definition) else getattr(of.connection, "pipeline", None))


def pipeline_of(cursor: Cursor) -> Definition:
    """Return the definition of the pipeline to whose database the cursor is connected."""
    pipeline: Definition | None = cursor.connection.pipeline
    assert pipeline is not None
    return pipeline


@cache
def _filled(name: str, pipeline: Definition | None) -> str:
    return fill(statements(QUERIES)[name], pipeline)


@cache
def statements(path: Path) -> Mapping[str, str]:
    """The statements of a file, or of all files of a folder, by name. Raises ValueError for a repeated name."""
    found: dict[str, str] = {}
    for file in sorted(path.glob("*.sql")) if path.is_dir() else [path]:
        _, *sections = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(sections[::2], sections[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file}: statement {name} stands twice; rename one")
            found[name] = text.strip()
    return found


def fill(text: str, definition: Definition | None) -> str:
    """The text with its placeholders replaced by lists of the definition's columns."""
    lists = _column_lists(definition) if definition else {}
    return _PLACEHOLDER.sub(lambda match: lists[match.group(1)], text)


@cache
def _column_lists(definition: Definition) -> dict[str, str]:
    result = definition.relational_columns
    served = (*result, *COORDINATES)
    key = definition.key_column
    names = {
        "view": definition.name,
        "stream": definition.stream.name,
        "table": definition.table.name,
        "output": definition.output.name,
    }
    comments = [(definition.column_name(column), definition.output.field(column.output).description)
                for column in definition.columns]  # fmt: skip
    comments += [(name, _PLACEHOLDER.sub(lambda match: names[match.group(1)], text))
                 for name, (_, text) in COORDINATES.items()]  # fmt: skip
    return {
        **names,
        "key": key,
        "table_key": definition.join_column,
        "version": definition.version_column,
        "day_from": definition.day_column,
        "columns": ", ".join(result),
        "columns_l": ", ".join(f"l.{name}" for name in result),
        "columns_b": ", ".join(f"b.{name}" for name in result),
        "columns_s": ", ".join(f"s.{name}" for name in result),
        "served": ", ".join(served),
        "served_f": ", ".join(f"f.{name}" for name in served),
        "served_l": ", ".join(f"l.{name}" for name in served),
        "served_x": ", ".join(f"x.{name}" for name in served),
        "masked": ", ".join(
            f"{_MASKED.format(name)} AS {name}" if name in definition.personal_columns else name for name in served
        ),
        "personal": ",".join(definition.personal_columns),
        "served_typed": ",\n    ".join(
            [*(f"{n} {definition.postgres_type(n)}" for n in result)]
            + [f"{n} {kind}" for n, (kind, _) in COORDINATES.items()]
        ),
        "served_excluded": ", ".join(f"{name} = excluded.{name}" for name in served if name != key),
        "descriptions": ",\n            ".join(f"[{_literal(name)}, {_literal(text)}]" for name, text in comments),
    }


def _literal(text: str) -> str:
    """The text as a literal that may stand between dollar quotes: the text has none that would end them."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''").replace("$", "\\$") + "'"
