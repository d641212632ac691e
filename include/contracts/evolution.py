"""Compares a definition with the database that it, or an earlier form of it, made."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from include.contracts.definition import Definition, postgres_type
from include.contracts.topics import Topic

Form = Mapping[str, Any]

_OTHER_RECORDS = "days that are built already hold other records; put it back, or make a pipeline of another name"
_REFUSED = "records that were accepted would be rejected when their day is built again"


class Evolution(NamedTuple):
    """The columns to add to the database, and the changes that it cannot take: field, state, reason and remedy."""

    added: tuple[str, ...]
    refused: tuple[str, ...]


def kept_form(definition: Definition) -> dict[str, Any]:
    """Return the definition as a database keeps it, in the structure of its file. It can be written as JSON."""
    stream, table = definition.stream, definition.table
    return {
        "stream": {
            **_topic_form(stream), "day": definition.day_field, "joined_by": definition.join_field,
        },
        "table": _topic_form(table),
        "clock_tolerance_s": _tolerance_s(definition),
        "output": {
            "topic": definition.output.name,
            "columns": [
                {
                    "name": definition.column_name(column),
                    "source": f"{column.side} {column.source}",
                    "personal": definition.output.field(column.output).personal,
                    "description": definition.output.field(column.output).description,
                }
                for column in definition.columns
            ],
        },
    }  # fmt: skip


def compare(definition: Definition, columns: Mapping[str, str], kept: Form | None) -> Evolution:
    """Compare the definition with the columns of the database (name → type) and with the form that it keeps.

    A database of a version that kept none is compared by its columns alone.
    """
    added = tuple(name for name in definition.relational_columns if name not in columns)
    refused = [*_columns_refused(definition, columns)]
    if kept is not None:
        refused += _form_refused(kept_form(definition), kept)
    return Evolution(added, tuple(refused))


def _columns_refused(definition: Definition, columns: Mapping[str, str]) -> Iterator[str]:
    wanted = {name: definition.postgres_type(name) for name in definition.relational_columns}
    for name, kind in columns.items():
        if name not in wanted:
            yield (
                f"[output] columns: {name} is missing, and the database has {name} {kind}; published days have its "
                "values, and queries of analysts name it; put it back, under this name"
            )
        elif wanted[name] != kind:
            yield (
                f"[output] columns {name} is {wanted[name]}, and the database has {kind}; rows and records that exist "
                "have the old type; put it back, or add a field and a column of another name"
            )


def _form_refused(today: Form, kept: Form) -> Iterator[str]:
    for section, name in (
        ("stream", "topic"), ("stream", "key"), ("stream", "version"), ("stream", "day"), ("stream", "joined_by"),
        ("table", "topic"), ("table", "key"), ("table", "version"), ("output", "topic"),
    ):  # fmt: skip
        new, old = today[section][name], kept[section][name]
        if new != old:
            yield f"[{section}] {name} = {new!r}, and the database has {old!r}; {_OTHER_RECORDS}"
    if today["clock_tolerance_s"] < kept.get("clock_tolerance_s", 0):
        yield (
            f"clock_tolerance_s = {today['clock_tolerance_s']}, and the database has {kept['clock_tolerance_s']}; "
            f"{_REFUSED}; give it that or more"
        )
    for section in ("stream", "table"):
        yield from _fields_refused(section, today[section]["fields"], kept[section]["fields"])
    columns = {column["name"]: column for column in kept["output"]["columns"]}
    for column in today["output"]["columns"]:
        old_column = columns.get(column["name"], column)
        place = f"[output] columns {column['name']}"
        if column["source"] != old_column["source"]:
            yield (
                f"{place} is of {column['source']}, and the database has it of {old_column['source']}; published days "
                "have the values of that; put it back, or add a column of another name"
            )
        if column["personal"] != old_column["personal"]:
            yield (
                f"{place}: personal = {_toml(column['personal'])}, and the database has {_toml(old_column['personal'])}"
                "; analysts of the masked view would see other values of days that are certified; put it back, or add "
                "a field and a column of another name"
            )


def _fields_refused(section: str, today: Form, kept: Form) -> Iterator[str]:
    for name, field in today.items():
        place = f"[{section}] fields {name}"
        old = kept.get(name)
        if old is None:
            if not field["nullable"]:
                yield f"{place} is new and never null; records that exist lack it; give it nullable = true"
            continue
        if field["type"] != old["type"]:
            yield (
                f"{place} is {field['type']}, and the database has {old['type']}; {_REFUSED}; put it back, or add a "
                "field of another name"
            )
        elif old["nullable"] and not field["nullable"]:
            yield f"{place} is never null, and the database has nullable = true; {_REFUSED}; put it back"
        elif (field["max_length"] or 0) < (old["max_length"] or 0):
            yield (
                f"{place}: max_length = {field['max_length']}, and the database has {old['max_length']}; {_REFUSED}; "
                "give it that length or more"
            )


def _tolerance_s(definition: Definition) -> int:
    tolerance = definition.stream.clock_tolerance
    return 0 if tolerance is None else int(tolerance.total_seconds())


def _topic_form(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "key": topic.key_field,
        "version": topic.version_field,
        "fields": {
            field.name: {"type": postgres_type(field), "nullable": field.nullable, "max_length": field.max_length}
            for field in topic.fields
        },
    }


def _toml(value: bool) -> str:
    return str(value).lower()
