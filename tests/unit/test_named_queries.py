"""Named queries: each loads, and nothing but the definition's columns is put into a text."""

import re

import pytest

from include.contracts.definition import BOARD_DETAIL_PIPELINE
from include.sql.named import QUERIES, fill, query

NAMES = sorted(path.stem for path in QUERIES.glob("*.sql"))


@pytest.mark.parametrize("name", NAMES)
def test_every_query_loads_and_has_no_placeholder_left(name):
    assert "{{" not in query(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_is_called_somewhere(name):
    root = QUERIES.parents[2]
    callers = [path for folder in ("include", "spark_jobs", "demo", "stack") for path in (root / folder).rglob("*.py")]
    assert any(re.search(rf'"{name}"', path.read_text(encoding="utf-8")) for path in callers)


def test_an_unknown_placeholder_is_an_error():
    with pytest.raises(KeyError):
        fill("SELECT {{nothing}}", BOARD_DETAIL_PIPELINE)
