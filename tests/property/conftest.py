"""The database of property tests that publish and undo, without the cost of opening sessions and of disk writes."""

import pytest
from psycopg2 import sql

from include.database.named import _filled
from tests.support import mutations
from tests.support.kept_sessions import kept_sessions
from tests.support.pipeline import rows


@pytest.fixture(scope="module")
def mutated(database, tmp_path_factory):
    """The module's database; with the mutation that the environment names, if it names one."""
    name = sql.Identifier(database.database.name)
    rows(database, sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
    with kept_sessions(), pytest.MonkeyPatch.context() as monkeypatch:
        mutations.apply(monkeypatch, tmp_path_factory.mktemp("mutation"), database)
        yield database
    _filled.cache_clear()
