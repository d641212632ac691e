"""Hooks for schemathesis, used by the fuzz of the gateway's calls (tests/e2e/test_gateway_fuzz.py)."""

import itertools
import re

import schemathesis

from include.contracts.clock import SystemClock
from include.contracts.pipelines import RAW_TOPICS
from include.contracts.validation import is_timestamp, parse_timestamp
from tests.fakes.events import AT

_numbers = itertools.count()
_VERSION_FIELDS = {topic.version_field for topic in RAW_TOPICS.values()}


@schemathesis.hook
def before_call(context, case, kwargs):
    """Give each call a key of its own: a key that came before with another body would be all that is refused."""
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch("[!-~]{1,200}", key):
        case.headers["Idempotency-Key"] = f"{key}.{next(_numbers)}"[-200:]


@schemathesis.hook
def map_body(context, body):
    """Leave out what JSON Schema allows and cannot say that the contract does not; see `plain`."""
    return plain(body)


def plain(value):
    """The value without what only the document's description excludes.

    Whole numbers written with a fraction, which JSON Schema calls integers: 7.0 would reach Kafka and Spark as 7.0.
    Versions that are later than the gateway's clock.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _past(item) if name in _VERSION_FIELDS else plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _past(version):
    is_ahead = isinstance(version, str) and is_timestamp(version) and parse_timestamp(version) > SystemClock().now()
    return AT if is_ahead else plain(version)
