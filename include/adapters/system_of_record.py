"""Members and boards in PostgreSQL: the member in columns, the board as a document."""

import asyncio
import datetime as dt
import json
import queue
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from include.adapters.postgres import open_connection
from include.clock import rfc3339
from include.contracts.definition import BOARD_DETAIL_PIPELINE
from include.contracts.topics import BOARD, MEMBER, Topic
from include.contracts.validation import parse_timestamp
from include.errors import DatabaseUnavailable
from include.gateway.ports import Saved
from include.settings import DatabaseSettings
from include.sql.named import query

_THREADS = 8
_MAX_WAITING = 256  # beyond it the database is too slow to be waited for: say so at once

_STATEMENTS = {
    MEMBER.name: {"create": "insert_member", "update": "update_member", "delete": "delete_member"},
    BOARD.name: {
        "create": "insert_board_document",
        "update": "update_board_document",
        "delete": "delete_board_document",
    },
}

Row = tuple[Any, ...]


class PostgresSystemOfRecord:
    """Keeps the promises of `ports.SystemOfRecord`: one statement a change, committed before it is told.

    `timeout_s` bounds a statement and its wait for a lock; connecting can take 5 s more.
    """

    def __init__(self, database: DatabaseSettings, timeout_s: float) -> None:
        self._database = database
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="system-of-record")
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._waiting = 0

    async def create(self, topic: Topic, fields: Mapping[str, object]) -> Saved:
        """See ports.SystemOfRecord.create."""
        row = await self._run(topic, "create", _parameters(topic, fields))
        if row is None:
            raise DatabaseUnavailable("the database returned no row for an insert", table=topic.name)
        return _saved(topic, row)

    async def update(self, topic: Topic, row_id: int, fields: Mapping[str, object]) -> Saved | None:
        """See ports.SystemOfRecord.update."""
        row = await self._run(topic, "update", {**_parameters(topic, fields), "id": row_id})
        return None if row is None else _saved(topic, row)

    async def delete(self, topic: Topic, row_id: int) -> Saved | None:
        """See ports.SystemOfRecord.delete."""
        row = await self._run(topic, "delete", {"id": row_id})
        return None if row is None else Saved(id=row[0], created_at=None, modified_at=row[1], value=None)

    async def close(self) -> None:
        """See ports.SystemOfRecord.close."""
        await asyncio.to_thread(self._pool.shutdown)
        while not self._idle.empty():
            self._idle.get().close()

    async def _run(self, topic: Topic, change: str, parameters: Mapping[str, object]) -> Row | None:
        if self._waiting >= _MAX_WAITING:
            raise DatabaseUnavailable("too many requests wait for the database", waiting=self._waiting)
        statement = query(_STATEMENTS[topic.name][change])
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._execute, statement, parameters)
        finally:
            self._waiting -= 1

    def _execute(self, statement: str, parameters: Mapping[str, object]) -> Row | None:
        # In a thread of the pool. A connection that idled may have died with the server: a statement that failed
        # before its commit was sent has changed nothing and may be tried again, a failed commit may not.
        while True:
            connection, is_new = self._connection()
            try:
                with connection.cursor() as cursor:
                    cursor.execute(statement, parameters)
                    row: Row | None = cursor.fetchone()
            except psycopg2.Error as exc:
                is_dead = connection.closed != 0
                connection.close()
                if is_dead and not is_new:
                    continue
                raise _unavailable(exc) from exc
            try:
                connection.commit()
            except psycopg2.Error as exc:
                connection.close()
                raise _unavailable(exc) from exc
            self._idle.put(connection)
            return row

    def _connection(self) -> tuple[Connection, bool]:
        try:
            return self._idle.get_nowait(), False
        except queue.Empty:
            connection = open_connection(self._database, "gateway", "gateway")
        try:
            with connection, connection.cursor() as cursor:
                timeout = str(int(self._timeout_s * 1000))
                cursor.execute(query("set_gateway_timeouts"), {"statement_timeout_ms": timeout})
        except psycopg2.Error as exc:
            connection.close()
            raise _unavailable(exc) from exc
        return connection, True


def _unavailable(exc: psycopg2.Error) -> DatabaseUnavailable:
    # by code and type only: the server's text quotes the row
    return DatabaseUnavailable(sqlstate=exc.pgcode or "none", kind=type(exc).__name__)


def _parameters(topic: Topic, fields: Mapping[str, object]) -> dict[str, object]:
    if topic is BOARD:
        return {"fields": json.dumps(fields, ensure_ascii=False)}
    return {field.column: fields.get(field.name) for field in topic.fields}


def _saved(topic: Topic, row: Row) -> Saved:
    if topic is BOARD:
        row_id, document, modified_at = row
        value = {field.name: document.get(field.name) for field in topic.fields}
        created = BOARD_DETAIL_PIPELINE.day_field
        return Saved(row_id, parse_timestamp(document[created]), modified_at, value)
    value = {
        field.name: rfc3339(cell) if isinstance(cell, dt.datetime) else cell
        for field, cell in zip(topic.fields, row, strict=True)
    }
    created_at, modified_at = row[-2:]
    return Saved(row[0], created_at, modified_at, value)
