"""A column may have any name that the definition's reader accepts: no statement takes it for a name of its own.

Two databases differ in the names of their columns alone: neutral ones, and words that the statements use. The plans of
every statement are equal but for these names, so none of the words is taken for an alias, a variable or another column.
"""

import contextlib
import re

import psycopg2
import pytest

from include.contracts.pipelines import load_definition
from include.database.migrate import migrate
from include.database.named import QUERIES, query, statements
from tests.agreement.database.test_evolution import settings_of
from tests.support.words import is_accepted, orders_with, words_of_statements

FUNCTIONS = {
    "shown_rows": "SELECT shown_rows(DATE '2026-11-20')",
    "by_key": "SELECT count(*) FROM order_detail_by_key('{1}')",
    "create_table": "SELECT generations.create_table(1, DATE '2026-11-20')",
}


def definition(folder, columns):
    path = folder / "order_detail.toml"
    path.write_text(orders_with(columns), encoding="utf-8")
    return load_definition(path)


def plans(settings):
    """The plan of each statement, or the SQLSTATE with which it fails for parameters that are null."""
    database = settings.database
    dsn = {"host": database.host, "port": database.port, "dbname": database.name, "user": "pipeline_owner"}
    found = {}
    with contextlib.closing(psycopg2.connect(**dsn, password=database.passwords["pipeline_owner"])) as connection:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")  # else the plans of statements about the catalog depend on autovacuum
        texts = {name: bound(query(name, database.pipeline)) for name in statements(QUERIES)}
        with connection.cursor() as cursor:
            for text in texts.values():
                if text.startswith("CREATE TEMP") and not has_table(cursor, text.split()[3]):
                    cursor.execute(text)
            for name, text in {**texts, **FUNCTIONS}.items():
                cursor.execute("SAVEPOINT one")
                try:
                    cursor.execute(text if name in FUNCTIONS else f"EXPLAIN (VERBOSE, COSTS OFF) {text}")
                    found[name] = re.sub(r"\b\d{5,}\b", "OID", "\n".join(str(line) for (line,) in cursor.fetchall()))
                except psycopg2.Error as exc:
                    found[name] = str(exc.pgcode)
                cursor.execute("ROLLBACK TO one")
    return found


def has_table(cursor, name):
    cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,))
    return cursor.fetchone()[0]


def bound(text):
    return re.sub(r"%\(\w+\)s|%s", "NULL", re.sub(r"^(--[^\n]*\n)+", "", text)).replace("%%", "%")


@pytest.fixture(scope="module")
def both(postgres, tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    accepted = [word for word in words_of_statements() if is_accepted(folder, word)]
    found = []
    for database, columns in (("neutral", [f"c{n}" for n in range(len(accepted))]), ("words", accepted)):
        postgres.new_database(f"names_{database}")
        settings = settings_of(postgres, f"names_{database}", definition(folder, columns))
        migrate(settings)
        found.append(plans(settings))
    return accepted, *found


def test_most_statements_have_a_plan(both):
    accepted, neutral, _ = both
    assert len(accepted) > 200
    assert sum(len(plan) > 5 for plan in neutral.values()) > len(neutral) * 0.6


@pytest.mark.parametrize("name", [*sorted(statements(QUERIES)), *FUNCTIONS])
def test_a_statement_has_the_same_plan_whatever_the_names_of_columns(both, name):
    accepted, neutral, of_words = both
    renamed = re.sub(r"\bc(\d+)\b", lambda match: accepted[int(match[1])], neutral[name])
    assert of_words[name].replace('"', "") == renamed.replace('"', "")
