"""Migrations are frozen text: they make the same schema, however the definition has changed since."""

import dataclasses
from pathlib import Path

import psycopg2
import pytest

from include.contracts import definition
from include.contracts.definition import BOARD_DETAIL_PIPELINE, Column
from include.contracts.fields import Field
from include.settings import Settings
from include.sql import named
from include.sql.migrate import migrate
from tests.support.catalogue import catalogue
from tests.support.database import database_environment

# The catalogue that revisions 0001 to 0008 made when 0001 and 0004 still rendered the definition, on PostgreSQL 18.
# It is never made again: a migration that was released is not edited.
FROZEN = "0008"
GOLDEN = Path(__file__).with_name(f"catalogue_{FROZEN}.txt")
GOLDEN_MAJOR = 18


def with_one_more_field() -> definition.Definition:
    today = BOARD_DETAIL_PIPELINE
    field = Field("language", "language", "string", "Language of the post.", 8, nullable=True)
    more = {
        side: dataclasses.replace(topic, fields=(*topic.fields, field))
        for side, topic in (("stream", today.stream), ("output", today.output))
    }
    return dataclasses.replace(today, **more, columns=(*today.columns, Column("stream", "language", "language")))


@pytest.mark.parametrize("changed", [BOARD_DETAIL_PIPELINE, with_one_more_field()], ids=["today", "one more field"])
def test_a_fresh_database_is_the_same_whatever_the_definition_says_today(postgres, monkeypatch, changed):
    for module in (definition, named):
        monkeypatch.setattr(module, "BOARD_DETAIL_PIPELINE", changed)
    dsn = postgres.new_database("frozen")
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", **database_environment(postgres, "frozen")}
    assert migrate(Settings.from_environment(environment), FROZEN) == FROZEN
    connection = psycopg2.connect(dsn)
    try:
        if connection.server_version // 10_000 != GOLDEN_MAJOR:
            pytest.skip(f"PostgreSQL {GOLDEN_MAJOR} prints the catalogue in its own words")
        assert catalogue(connection) == GOLDEN.read_text(encoding="utf-8").splitlines()
    finally:
        connection.close()
