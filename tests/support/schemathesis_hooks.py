"""What the fuzz of the gateway's calls (tests/integration/test_gateway_openapi.py) adds to schemathesis."""

import itertools
import re

import schemathesis

_numbers = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    """Give each call a key of its own: a key that came before with another body would be all that is refused."""
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch("[!-~]{1,200}", key):
        case.headers["Idempotency-Key"] = f"{key}.{next(_numbers)}"[-200:]


@schemathesis.hook
def map_body(context, body):
    """JSON Schema calls 7.0 an integer. The gateway does not, on purpose: it would reach Kafka and Spark as 7.0."""
    return with_plain_integers(body)


def with_plain_integers(value):
    """The value, its whole numbers written without a fraction."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: with_plain_integers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_plain_integers(item) for item in value]
    return value
