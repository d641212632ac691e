"""Large loads, in bytes, pending records or records of the table, produced to the topics at once."""

import itertools
from collections.abc import Sequence
from typing import Any

from include.contracts.topics import Topic
from include.runtime.settings import Settings
from tests.support.pipeline import produce
from tests.support.records import value_of

LARGE_BYTES = 30 << 20  # more than the driver takes at a time
PENDING_RECORDS = 20_000
UNKNOWN_KEYS = 400
TABLE_RECORDS = 12_000  # more than the driver reads by itself
_LOT = 2_000
_ids = itertools.count(900_000_000)  # above those of all rounds of the load


def new_id() -> int:
    """An id that nothing else has."""
    return next(_ids)


def longest_text(topic: Topic) -> int:
    """Return the characters that the strings of a record can have together."""
    return sum(field.max_length or 0 for field in topic.fields)


def large_records(settings: Settings) -> None:
    """Records of the stream whose strings are as long as the contract allows, four bytes a character."""
    pipeline, joined = settings.pipeline, new_id()
    texts = {field.name: "𝕏" * field.max_length for field in pipeline.stream.fields if field.max_length}
    count = LARGE_BYTES // (4 * longest_text(pipeline.stream))
    _send(settings, pipeline.table, [value_of(pipeline.table, joined)])
    _send(settings, pipeline.stream, _joining(settings, [joined] * count, texts))


def many_pending(settings: Settings) -> None:
    """Records of the stream whose records of the table come afterwards: half of them, the others never."""
    unknown = [new_id() for _ in range(UNKNOWN_KEYS)]
    of = [unknown[number % UNKNOWN_KEYS] for number in range(PENDING_RECORDS)]
    _send(settings, settings.pipeline.stream, _joining(settings, of))
    _send(settings, settings.pipeline.table, [value_of(settings.pipeline.table, key) for key in unknown[::2]])


def bulk_of_table_records(settings: Settings) -> None:
    """Records of the table in bulk; records of the stream wait for some of them already."""
    keys = [new_id() for _ in range(TABLE_RECORDS)]
    _send(settings, settings.pipeline.stream, _joining(settings, keys[::100]))
    _send(settings, settings.pipeline.table, [value_of(settings.pipeline.table, key) for key in keys])


def _joining(settings: Settings, keys: Sequence[int], fields: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return a record of the stream for each of these keys of the table."""
    pipeline = settings.pipeline
    return [value_of(pipeline.stream, new_id()) | {pipeline.join_field: key} | (fields or {}) for key in keys]


def _send(settings: Settings, topic: Topic, values: Sequence[dict[str, Any]]) -> None:
    for first in range(0, len(values), _LOT):
        lot = values[first : first + _LOT]
        produce(settings, [(topic.name, value[topic.key_field], value) for value in lot])
