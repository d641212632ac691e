"""The gateway's OpenAPI document, read by tests."""

import re

import jsonschema


def operations(document):
    return {(method.upper(), path): one for path, item in document["paths"].items() for method, one in item.items()}


def resolved(document, part):
    while "$ref" in part:
        *_, kind, name = part["$ref"].split("/")
        part = document["components"][kind][name]
    return part


def operation_of(document, method, path):
    for (known, template), operation in operations(document).items():
        if known == method and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", template), path):
            return operation
    raise AssertionError(f"{method} {path} is not documented")


def breaches(document, response, method, path):
    """Return the differences between a response and the document; empty if there are none."""
    responses = operation_of(document, method, path)["responses"]
    if str(response.status_code) not in responses:
        return [f"{response.status_code} is not documented"]
    documented = resolved(document, responses[str(response.status_code)])
    found = [
        f"no {name} header"
        for name, header in documented.get("headers", {}).items()
        if resolved(document, header)["required"] and name not in response.headers
    ]
    media_type = response.headers["content-type"].partition(";")[0]
    if media_type not in documented["content"]:
        return [*found, f"{media_type} is not documented"]
    if media_type == "text/plain":
        return found
    schema = {**documented["content"][media_type]["schema"], "components": document["components"]}
    return found + [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(response.json())]
