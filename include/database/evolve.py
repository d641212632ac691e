"""Brings the tables and views of a database to the pipeline's definition: a step of `pipeline database migrate`."""

import json
import logging
from hashlib import sha256
from pathlib import Path

from psycopg2 import sql
from psycopg2.errors import DependentObjectsStillExist
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import ContractMismatch
from include.contracts.evolution import compare, kept_form
from include.database.named import fill, pipeline_of, query
from include.database.schema_revision import detail_columns

log = logging.getLogger(__name__)

VIEW = Path(__file__).parent / "view.sql"
_TABLES = ("detail_live", "detail_covered", "detail_empty", "detail_final")


def make_view(cursor: Cursor) -> None:
    """Make the views that have the definition's columns, and keep the definition and the hash of the statements."""
    cursor.execute(_statements(cursor))
    for name, value in (("definition", _today(cursor)), ("views", _hash(cursor))):
        cursor.execute(query("save_setting", cursor), {"name": name, "value": value})


def evolve(connection: Connection) -> None:
    """Add the definition's new columns to the tables, and make the views again if they or the definition have changed.

    It is one transaction. New columns are nullable: rows that exist have NULL in them. Raises ContractMismatch, and
    changes nothing, for any other change of a column, the key, the join, the day or the topics, and when other objects
    depend on the views.
    """
    with connection, connection.cursor() as cursor:
        definition = pipeline_of(cursor)
        kept = _setting(cursor, "definition")
        evolution = compare(definition, detail_columns(cursor), json.loads(kept) if kept else None)
        if evolution.refused:
            raise ContractMismatch(
                f"{definition.name}.toml: {evolution.refused[0]}; see docs/pipelines.md, What a migration does"
            )
        if evolution.added or kept != _today(cursor) or _setting(cursor, "views") != _hash(cursor):
            _change(cursor, evolution.added)


def _change(cursor: Cursor, added: tuple[str, ...]) -> None:
    cursor.execute(query("select_view_grants", cursor))
    grants = [statement for (statement,) in cursor.fetchall()]
    try:
        cursor.execute(query("drop_view", cursor))  # before the tables are locked: readers lock them in this order
    except DependentObjectsStillExist as exc:
        raise ContractMismatch(
            f"the views have to be made again, and other objects depend on them ({exc.diag.message_detail}); drop "
            "those, run the migrations, and create them again"
        ) from exc
    for column in added:
        for table in _TABLES:
            _add_column(cursor, sql.Identifier("public", table), column)
        cursor.execute(query("select_tables_without_column", cursor), {"column": column})
        for (table,) in cursor.fetchall():
            _add_column(cursor, sql.Identifier("generations", table), column)
    make_view(cursor)
    for statement in grants:
        cursor.execute(statement)
    if added:
        cursor.execute(query("save_added_columns", cursor), {"columns": list(added)})
        log.info("added column %s; rows that exist have NULL in it until their day is built again", ", ".join(added))


def _add_column(cursor: Cursor, table: sql.Identifier, column: str) -> None:
    kind = sql.SQL(pipeline_of(cursor).postgres_type(column))
    cursor.execute(sql.SQL(query("add_column", cursor)).format(table=table, column=sql.Identifier(column), type=kind))


def _setting(cursor: Cursor, name: str) -> str | None:
    cursor.execute(query("select_setting", cursor), {"name": name})
    row = cursor.fetchone()
    return str(row[0]) if row else None


def _statements(cursor: Cursor) -> str:
    return fill(VIEW.read_text(encoding="utf-8"), pipeline_of(cursor))


def _hash(cursor: Cursor) -> str:
    return sha256(_statements(cursor).encode()).hexdigest()


def _today(cursor: Cursor) -> str:
    return json.dumps(kept_form(pipeline_of(cursor)), ensure_ascii=False)
