"""Named queries: each loads, and nothing but the definition's columns is put into a text."""

import re

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.named import QUERIES, fill, query, statements

NAMES = sorted(statements(QUERIES))


@pytest.mark.parametrize("name", NAMES)
def test_every_query_loads_and_has_no_placeholder_left(name):
    assert "{{" not in query(name, PIPELINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_may_be_negative_is_cast_as_a_whole(name):
    """`-5::text` is minus '5', which no operator takes. These are texts, and arrays come with brackets."""
    cast = re.findall(r"(?<!\()%\((\w+)\)s::(?:text|bigint|int|integer|numeric)\b(?!\[)", query(name, PIPELINE))
    assert set(cast) <= {"run_id", "topic", "finality"}


def test_every_query_is_called_somewhere():
    root = QUERIES.parents[2]
    files = [path for folder in ("include", "spark_jobs", "stack") for path in (root / folder).rglob("*.py")]
    called = {name for path in files for name in re.findall(r'"(\w+)"', path.read_text(encoding="utf-8"))}
    assert set(NAMES) - called == set()


def test_the_demo_has_the_statements_that_it_calls():
    demo = QUERIES.parents[2] / "demo"
    called = re.findall(r'self\._rows\("(\w+)"', (demo / "warehouse.py").read_text(encoding="utf-8"))
    assert set(called) == set(statements(demo / "queries.sql"))


def test_an_unknown_placeholder_is_an_error():
    with pytest.raises(KeyError):
        fill("SELECT {{nothing}}", PIPELINE)


def test_a_name_that_stands_twice_is_an_error(tmp_path):
    for file in ("a.sql", "b.sql"):
        (tmp_path / file).write_text("-- A title.\n\n-- name: same\nSELECT 1\n")
    with pytest.raises(ValueError, match=r"b\.sql: statement same stands twice"):
        statements(tmp_path)


def test_a_title_belongs_to_no_statement():
    assert not [name for name in NAMES if "-- name:" in query(name, PIPELINE)]
    assert query("begin_rows", PIPELINE) == "SAVEPOINT batch_rows"
