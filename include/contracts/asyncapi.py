"""A pipeline's topics as an AsyncAPI 3 document: channels, messages, keys, headers and settings."""

from typing import Any

from include.contracts.definition import Definition
from include.contracts.fields import LONG_MAX, LONG_MIN, TIMESTAMP
from include.contracts.headers import (
    ACCEPTED_AT,
    EVENT_ID,
    IDEMPOTENCY_KEY,
    MAX_EVENT_ID_LENGTH,
    RECORD_PATTERN,
    REPLAYED_AT,
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
_OFFSET = {"type": "string", "pattern": "^-?[0-9]+$"}
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
        definition.source_header(f"{side}_{part}"): {
            **(_OFFSET if part != "topic" else {"type": "string"}),
            "description": f"The {part} of the {source.name} record that the row was made from.",
        }
        for side, source in (("stream", definition.stream), ("table", definition.table))
        for part in ("topic", "partition", "offset")
    }
    accepted = {**_TIME, "description": f"That of the {definition.stream.name} record; on a tombstone, its version."}
    return {EVENT_ID: _RAW_HEADERS[EVENT_ID], ACCEPTED_AT: accepted, **sources, TRACEPARENT: _RAW_HEADERS[TRACEPARENT]}
