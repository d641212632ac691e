"""A pipeline's view as an Open Data Contract (ODCS 3): columns, personal data, quality rules and service levels."""

from typing import Any, Literal

from include.contracts.definition import Definition
from include.contracts.fields import Field, FieldType
from include.contracts.topics import REBUILD_WINDOW_DAYS

_LOGICAL_TYPES: dict[FieldType, str] = {
    "long": "integer", "string": "string", "timestamp": "timestamp", "decimal": "number", "boolean": "boolean",
    "date": "date",
}  # fmt: skip


def data_contract(definition: Definition) -> dict[str, Any]:
    """Return the contract of the view, the masked view and that of certified days, as analysts read them."""
    return {
        "apiVersion": "v3.0.2",
        "kind": "DataContract",
        "id": definition.name,
        "name": definition.name,
        "version": "1.0.0",
        "status": "active",
        "description": {
            "purpose": definition.output.description,
            "usage": f"Query {definition.name}_masked, or {definition.name}_certified for certified days only; role"
            f" analyst_personal may query {definition.name} too.",
            "limitations": "Rows with finality 'live' may change until their day is published; see view day_status.",
        },
        "servers": [
            {
                "server": "postgresql",
                "type": "postgresql",
                "description": "The database of the pipeline: DATABASE_HOST, DATABASE_PORT and DATABASE_NAME.",
                "host": "localhost",
                "port": 5432,
                "database": "pipeline",
                "schema": "public",
            }
        ],
        "schema": [_view(definition, form) for form in ("", "masked", "certified")],
        "slaProperties": [
            {
                "property": "retention", "value": REBUILD_WINDOW_DAYS, "unit": "d",
                "element": f"{definition.name}.day",
                "description": "For so long after it, a day can be built again from the topics, and without an end from"
                " the archive; the view keeps all days.",
            },
            {
                "property": "frequency", "value": 1, "unit": "d", "element": f"{definition.name}.finality",
                "description": "The night builds and publishes the day before; until then its rows are live.",
            },
        ],
    }  # fmt: skip


def _view(definition: Definition, form: Literal["", "masked", "certified"]) -> dict[str, Any]:
    name = f"{definition.name}_{form}" if form else definition.name
    key = definition.key_column
    return {
        "name": name,
        "physicalName": name,
        "logicalType": "object",
        "physicalType": "view",
        "description": f"Every {definition.stream.name} with its {definition.table.name}"
        + {"": ".", "masked": ", with personal values masked.",
           "certified": ": the certified rows of certified days, with personal values masked."}[form],
        "dataGranularityDescription": f"One row per {definition.stream.name}.",
        "properties": [
            *(_property(definition, definition.output.field(each.output), bool(form)) for each in definition.columns),
            {
                "name": "day", "logicalType": "date", "physicalType": "date", "required": True,
                "description": f"The date of {definition.day_column} in the pipeline's time zone.",
            },
            {
                "name": "finality", "logicalType": "string", "physicalType": "text", "required": True,
                "description": "'final' once the day was rebuilt and published, 'live' until then.",
            },
        ],
        "quality": [
            {
                "name": "one row per key", "type": "sql", "dimension": "uniqueness", "mustBe": 0,
                "description": "A key has one row, whatever was sent twice.",
                "query": f"SELECT count(*) - count(DISTINCT {key}) FROM {name}",  # noqa: S608 text for a catalogue
            },
            {
                "name": "balance of certified days", "type": "sql", "dimension": "completeness", "mustBe": 0,
                "description": "Every distinct record of a certified day is a row, pending or rejected.",
                "query": "SELECT count(*) FROM day_status WHERE status = 'certified'"
                " AND raw_distinct <> row_count + pending_count + rejected_count",
            },
        ],
    }  # fmt: skip


def _property(definition: Definition, field: Field, masked: bool) -> dict[str, Any]:
    is_key = field.name == definition.output.key_field
    return {
        "name": field.column,
        "businessName": field.name,
        "logicalType": _LOGICAL_TYPES[field.type],
        "physicalType": definition.postgres_type(field.column),
        "description": field.description,
        "required": not field.nullable,
        **({"primaryKey": True, "primaryKeyPosition": 1, "unique": True} if is_key else {}),
        "classification": ("masked" if masked else "personal") if field.personal else "internal",
    }
