"""Schemas of the OpenAPI document: events and rows from the contracts, and the bodies of answers."""

from collections.abc import Iterable
from typing import Any

from include.contracts.fields import LONG_MAX, TEXT_PATTERN, Field, decimal_example
from include.contracts.pipelines import BOARD, MEMBER, RAW_TOPICS, SITE_PIPELINE
from include.contracts.topics import Topic
from include.contracts.validation import MAX_DEPTH
from include.runtime.settings import GatewayLimits

Json = dict[str, Any]

_AT = "2026-11-20T09:30:00.000Z"
_EXAMPLES: Json = {
    "nickname": "하늘",
    "city": "서울",
    "phone": "010-0000-0000",
    "email": "sky@example.org",
    "title": "제목",
    "body": "본문",
}
_TEXT: Json = {"type": "string", "pattern": TEXT_PATTERN}
_EXAMPLE_OF_TYPE: Json = {"long": 7, "timestamp": _AT, "string": "text", "boolean": True, "date": "2026-11-20"}
_BEYOND: Json = {
    "description": f"A field beyond the contract, passed through unchanged; at most {MAX_DEPTH} levels deep in all.",
    "anyOf": [
        {"type": ["null", "boolean", "number"]},
        _TEXT,
        {"type": "array", "items": {"$ref": "#/components/schemas/Beyond"}},
        {
            "type": "object",
            "propertyNames": _TEXT,
            "additionalProperties": {"$ref": "#/components/schemas/Beyond"},
        },
    ],
}


def ref(name: str) -> Json:
    """Return a reference to one of the components below."""
    return {"$ref": f"#/components/schemas/{name}"}


def title(topic: str) -> str:
    """Return the name of a topic's schema: board-detail → BoardDetail."""
    return "".join(part.capitalize() for part in topic.split("-"))


def given_fields(topic: Topic) -> list[Field]:
    """Return the fields of a row that clients give; the server generates the id and the times."""
    made_here = {topic.key_field, SITE_PIPELINE.day_field, topic.version_field}
    return [field for field in topic.fields if field.name not in made_here]


def example(fields: Iterable[Field]) -> Json:
    """Return a value that satisfies the contract."""
    return {field.name: _EXAMPLES.get(field.name, _example_of_type(field)) for field in fields}


def _example_of_type(field: Field) -> Any:
    if field.type == "decimal":
        return decimal_example(field.precision, field.scale)
    return _EXAMPLE_OF_TYPE[field.type][: field.max_length] if field.type == "string" else _EXAMPLE_OF_TYPE[field.type]


def components(limits: GatewayLimits) -> Json:
    """Return all schemas by name."""
    found: Json = {}
    for topic in RAW_TOPICS.values():
        name = title(topic.name)
        found[name] = {key: value for key, value in topic.json_schema().items() if key != "$schema"}
        found[name] |= {"propertyNames": _TEXT, "additionalProperties": ref("Beyond")}
        found[name + "Array"] = {
            "type": "array",
            "items": ref(name),
            "minItems": 1,
            "maxItems": limits.max_events,
            "description": f"At most {limits.max_body_bytes} bytes in all.",
        }
    for topic in (MEMBER, BOARD):
        given = given_fields(topic)
        found[title(topic.name) + "Fields"] = _object(
            {field.name: field.json_schema() for field in given},
            required=[field.name for field in given if not field.nullable],
        )
    return found | {"Beyond": _BEYOND} | _answers(limits)


def _answers(limits: GatewayLimits) -> Json:
    degraded: Json = {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "description": "Reasons why the gateway works with restrictions, as messages; empty if there are none.",
    }
    kept_in: Json = {"enum": ["kafka", "fallback"], "description": "Where the event is durable."}
    event_id: Json = {
        "type": "string",
        "minLength": 1,
        "description": "Identity of the event: all copies of it share the id, and no other event has it.",
    }
    count: Json = {"type": "integer", "minimum": 0}
    at: Json = {"type": "string", "format": "date-time"}
    details: Json = {"type": "array", "items": ref("Detail"), "minItems": 1}
    error: Json = {"type": "string", "minLength": 1}
    row: Json = {"id": ref("RowId"), "eventId": event_id, "keptIn": kept_in, "createdAt": at, "modifiedAt": at}
    return {
        "RowId": {"type": "integer", "minimum": 1, "maximum": LONG_MAX},
        "Kept": _object({"eventId": event_id, "keptIn": kept_in}),
        "Row": _object(row, required=[name for name in row if name != "createdAt"]),
        "Error": _object({"error": error, "details": details}),
        "Detail": _object(
            {
                "pointer": {"type": "string", "format": "json-pointer", "description": "Empty for the whole."},
                "problem": {"type": "string", "minLength": 1, "description": "What is wrong."},
                "remedy": {"type": "string", "minLength": 1, "description": "How to correct it."},
            }
        ),
        "Results": _object(
            {"results": {"type": "array", "items": ref("Result"), "minItems": 1, "maxItems": limits.max_events}}
        ),
        "Result": {
            "description": "The outcome of one event of an array, at the event's index.",
            "oneOf": [ref("KeptResult"), ref("RefusedResult"), ref("NotKeptResult")],
        },
        "KeptResult": _object({"status": {"const": 201}, "eventId": event_id, "keptIn": kept_in}),
        "RefusedResult": _object({"status": {"enum": [400, 413, 422]}, "error": error, "details": details}),
        "NotKeptResult": _object(
            {"status": {"const": 503}, "eventId": event_id, "error": error, "details": details},
        ),
        "Health": _object({"status": {"const": "alive"}}),
        "Readiness": _object({"kafka": {"type": "boolean"}, "fallback": {"type": "boolean"}, "degraded": degraded}),
        "Fallback": _object(
            {
                "storeId": {
                    "type": "string",
                    "format": "uuid",
                    "description": "Stays the same as long as the folder of the store exists.",
                },
                "backlog": count | {"description": "Waiting records."},
                "oldestAgeS": {"type": "number", "minimum": 0, "description": "Age of the oldest waiting record."},
                "ambiguous": count | {"description": "Waiting records that may be in Kafka already."},
                "refused": count | {"description": "Records set aside because Kafka refuses them for good."},
                "lost": count | {"description": "Records lost to damage of the store, until a person acknowledges it."},
                "clockAheadS": {
                    "type": ["number", "null"],
                    "description": "Seconds by which the gateway's clock is ahead of the Kafka brokers', at least; "
                    "null if no broker has said what time it is.",
                },
                "degraded": degraded,
                "bytes": count,
                "maxBytes": count,
                "circuit": {"enum": ["closed", "open", "half-open"]},
                "partitionsOut": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Partitions, topic/number, whose events bypass Kafka though the circuit is closed.",
                },
                "replayed": count | {"description": "Records replayed since the start of the process."},
                "setAside": count | {"description": "Records set aside since the start of the process."},
            }
        ),
    }


def _object(properties: Json, required: list[str] | None = None) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }
