"""The gateway's OpenAPI 3.1 document, generated from the contracts and the limits.

`python -m include.gateway.calls.openapi` prints it, `--write` writes it to docs/contracts, `--check` exits 1 if the
file there is out of date. A running gateway serves the document with its own limits at GET /openapi.json.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from include.contracts.fields import FIRST_YEAR, LAST_YEAR
from include.gateway.calls import openapi_schemas as schemas
from include.gateway.calls.openapi_calls import FAULTS, JSON, OF_EVERY_CALL, Call, Fault, calls
from include.gateway.calls.openapi_schemas import Json, ref
from include.runtime.settings import GatewayLimits

TARGET = Path(__file__).resolve().parents[3] / "docs" / "contracts" / "gateway.openapi.json"

_DESCRIPTION = f"""Accepts events for Kafka. A 2xx answer means that the event is durable: acknowledged by all in-sync
replicas (`keptIn: kafka`), or written to the disk of the fallback store (`keptIn: fallback`), from which the gateway
sends it to Kafka later under the same event id.

A call with an `Idempotency-Key` can be repeated after any answer, or without one: within the window the same key gets
the same answer and produces no second record. A method that a path does not support is answered 405 with `Allow`, an
unknown path 404, both with the body `Error`.

`X-Request-Id` identifies a request in its answer and in the gateway's log. A client may send its own, of 1 to 128
visible ASCII characters; the gateway makes an id if there is none, or another text. Records of a call with a valid
`traceparent` (W3C Trace Context) belong to its trace; `tracestate` is not passed on.

Pages of the origins in `GATEWAY_ALLOWED_ORIGINS` may make all calls from a browser (CORS); by default there are none.

Integers are written as such: 7, not 7.0. Times are written in the years {FIRST_YEAR} to {LAST_YEAR}."""

_HEADERS: Mapping[str, Json] = {
    "Connection": {"description": "The gateway closes the connection.", "required": True, "schema": {"const": "close"}},
    "Retry-After": {"description": "Seconds.", "required": True, "schema": {"type": "integer", "minimum": 1}},
    "X-Request-Id": {"description": "The request's id.", "required": True, "schema": {"type": "string"}},
    "WWW-Authenticate": {"required": True, "schema": {"type": "string", "pattern": "^Bearer"}},
}

_IDEMPOTENCY_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Identifies this call: repeated within the window, it gets the same answer and produces no second "
    "record. Records carry the key as their header `idempotency-key`; it is not the event id.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    "example": "0b6e1a52-8d0e-4f6e-9a43-5d1a3d2f9c10",
}

_TOKENS = {
    "data": (
        "dataToken",
        "A token whose scope includes the topic of the call: of the gateway's file, or an "
        "access token of its issuer with the scope `gateway:topic:NAME` or `gateway:topic:*`.",
    ),
    "admin": (
        "adminToken",
        "A token whose scope includes the calls on the fallback store; of an access token that is `gateway:admin`.",
    ),
}


def document(limits: GatewayLimits) -> Json:
    """Return the OpenAPI document of a gateway with these limits."""
    paths: dict[str, Json] = {}
    for call in calls(limits):
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Event gateway", "version": "1", "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components(limits),
            "responses": {fault.name: _fault(fault, ref("Error")) for fault in FAULTS},
            "headers": dict(_HEADERS),
            "parameters": {"IdempotencyKey": _IDEMPOTENCY_KEY},
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": text} for name, text in _TOKENS.values()
            },
        },
    }


def _operation(call: Call) -> Json:
    operation: Json = {"operationId": call.name, "summary": call.summary}
    statuses = {*call.faults, *OF_EVERY_CALL}
    parameters: list[Json] = list(call.parameters)
    if call.is_idempotent:
        parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    if parameters:
        operation["parameters"] = parameters
    if call.access:
        operation["security"] = [{_TOKENS[call.access][0]: []}]
        statuses |= {401, 403, *([429] if call.access == "data" else [])}
    if call.body is not None:
        content: Json = {"schema": call.body}
        if call.examples:
            content["examples"] = {name: {"value": value} for name, value in call.examples.items()}
        operation["requestBody"] = {"required": True, "content": {JSON: content}}
    responses = {fault.status: _of_call(fault, 200 in call.answers and 201 in call.answers) for fault in FAULTS}
    responses = {status: response for status, response in responses.items() if status in statuses}
    for status, (description, schema) in call.answers.items():
        media_type = call.media_type if status < 400 else JSON
        responses[status] = {
            "description": description,
            "headers": _headers(),
            "content": {media_type: {"schema": schema}},
        }
        if call.links:
            responses[status]["links"] = dict(call.links)
    operation["responses"] = {str(status): responses[status] for status in sorted(responses)}
    return operation


def _of_call(fault: Fault, takes_arrays: bool) -> Json:
    if takes_arrays and fault.status in (400, 413, 422, 503):  # also of an array whose events all have this status
        return _fault(fault, {"anyOf": [ref("Error"), ref("Results")]})
    return {"$ref": f"#/components/responses/{fault.name}"}


def _fault(fault: Fault, schema: Json) -> Json:
    response: Json = {"description": fault.description, "content": {JSON: {"schema": schema}}}
    response["headers"] = _headers(*fault.headers)
    return response


def _headers(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, "X-Request-Id")}


def text() -> str:
    """Return the content of the file in docs/contracts: the document of a gateway with the default limits."""
    return json.dumps(document(GatewayLimits()), indent=2, ensure_ascii=False) + "\n"


def is_drifted(target: Path) -> bool:
    """True if the file is missing or differs from the generated document."""
    return not target.exists() or target.read_text(encoding="utf-8") != text()


def main(arguments: list[str] | None = None) -> int:
    """Print the document, write it, or check the written one."""
    parser = argparse.ArgumentParser(description="The gateway's OpenAPI document.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help=f"write it to {TARGET.name} in docs/contracts")
    action.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        if is_drifted(TARGET):
            print(f"out of date: {TARGET.name}; run: python -m include.gateway.calls.openapi --write", file=sys.stderr)
            return 1
    elif chosen.write:
        TARGET.write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
