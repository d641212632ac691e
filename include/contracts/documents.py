"""The documents of a pipeline for others, which `stack.export` writes.

Its topics are an AsyncAPI 3 document: channels, messages, keys, headers and settings. Its view is an Open Data Contract
(ODCS 3): columns, personal data, quality rules and service levels.
"""

from typing import Any, Literal

from include.contracts.definition import Definition
from include.contracts.fields import LONG_MAX, LONG_MIN, TIMESTAMP, Field, FieldType
from include.contracts.headers import (
    ACCEPTED_AT,
    EVENT_ID,
    IDEMPOTENCY_KEY,
    MAX_EVENT_ID_LENGTH,
    RECORD_PATTERN,
    REPLAYED_AT,
    SOURCE_PATTERNS,
    TRACEPARENT,
)
from include.contracts.topics import KEPT_FOR_EVER, REBUILD_WINDOW_DAYS, Topic

_BINDING = "0.5.0"
_KEY = {
    "type": "string",
    "pattern": "^(0|-?[1-9][0-9]{0,18})$",
    "description": f"The value's key field as decimal text, from {LONG_MIN} to {LONG_MAX}.",
}
_TIME = {"type": "string", "format": "date-time", "pattern": TIMESTAMP.pattern}
_SOURCE = {"type": "string", "pattern": f"^{'/'.join(SOURCE_PATTERNS)}$"}
_EVENT = {"type": "string", "minLength": 1, "maxLength": MAX_EVENT_ID_LENGTH}
_RAW_HEADERS = {
    EVENT_ID: {**_EVENT, "description": "Identity of the event, with the record key."},
    IDEMPOTENCY_KEY: {**_EVENT, "description": "The client's Idempotency-Key, if it sent one."},
    ACCEPTED_AT: {**_TIME, "description": "When the gateway accepted the event."},
    REPLAYED_AT: {**_TIME, "description": "Set if the record was replayed from a gateway's store."},
    TRACEPARENT: {
        "type": "string",
        "pattern": RECORD_PATTERN,
        "description": "The trace of the request, by W3C Trace Context, if it belongs to one.",
    },
}


def asyncapi(definition: Definition) -> dict[str, Any]:
    """Return the document. The pipeline receives the stream and the table, and sends the output."""
    topics = (definition.stream, definition.table, definition.output)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": definition.name,
            "version": "1.0.0",
            "description": f"Topics of pipeline {definition.name}: {definition.stream.name} joined with "
            f"{definition.table.name}, delivered to {definition.output.name}.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": "{address}",
                "protocol": "kafka",
                "description": "The brokers of the installation: KAFKA_BOOTSTRAP_SERVERS.",
                "variables": {"address": {"default": "localhost:9092", "description": "Host and port."}},
            }
        },
        "channels": {topic.name: _channel(topic) for topic in topics},
        "operations": {
            f"{'send' if topic is definition.output else 'receive'}-{topic.name}": {
                "action": "send" if topic is definition.output else "receive",
                "channel": {"$ref": f"#/channels/{topic.name}"},
            }
            for topic in topics
        },
        "components": {
            "messages": {
                name: message for topic in topics for name, message in _messages(topic, _headers(topic, definition))
            }
        },
    }


def _channel(topic: Topic) -> dict[str, Any]:
    return {
        "address": topic.name,
        "description": topic.description,
        "messages": {
            name: {"$ref": f"#/components/messages/{name}"} for name in (topic.name, f"{topic.name}-tombstone")
        },
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "topicConfiguration": {
                    "cleanup.policy": ["delete"],
                    "retention.ms": (
                        KEPT_FOR_EVER
                        if topic.retention_days is None
                        else int(topic.settings(1, REBUILD_WINDOW_DAYS)["retention.ms"])
                    ),
                },
                "bindingVersion": _BINDING,
            }
        },
    }


def _messages(topic: Topic, headers: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    payload = {name: value for name, value in topic.json_schema().items() if name != "$schema"}
    common = {
        "headers": {"type": "object", "properties": headers},
        "contentType": "application/json",
        "bindings": {"kafka": {"key": _KEY, "bindingVersion": _BINDING}},
    }
    deleted = {"title": f"{topic.name}-tombstone", "summary": f"The {topic.name} of the key is deleted."}
    return [
        (topic.name, {"title": topic.name, "summary": topic.description, **common, "payload": payload}),
        (f"{topic.name}-tombstone", {**deleted, **common, "payload": {"type": "null"}}),
    ]


def _headers(topic: Topic, definition: Definition) -> dict[str, Any]:
    if topic is not definition.output:
        return _RAW_HEADERS
    sources = {
        source.source_header: {
            **_SOURCE,
            "description": f"Topic, partition and offset of the {source.name} record that the row was made from.",
        }
        for source in (definition.stream, definition.table)
    }
    accepted = {**_TIME, "description": f"That of the {definition.stream.name} record; on a tombstone, its version."}
    return {EVENT_ID: _RAW_HEADERS[EVENT_ID], ACCEPTED_AT: accepted, **sources, TRACEPARENT: _RAW_HEADERS[TRACEPARENT]}


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
