"""Rows on their way into PostgreSQL."""

from collections.abc import Iterable
from typing import Any


def plain_values(row: Iterable[Any]) -> list[Any]:
    """A row's values as psycopg2 takes them: Spark's binary comes as bytearray, which it would not."""
    return [bytes(value) if isinstance(value, bytearray) else value for value in row]
