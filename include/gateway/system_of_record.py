"""The system of record in PostgreSQL: a member in columns, a board as a document."""

import asyncio
import datetime as dt
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.clock import rfc3339
from include.contracts.errors import DatabaseClockAhead, DatabaseUnavailable
from include.contracts.fields import snake_case
from include.contracts.pipelines import BOARD, MEMBER, SITE_PIPELINE
from include.contracts.topics import Topic
from include.contracts.validation import parse_timestamp
from include.contracts.versions import GATEWAY_MARGIN, dated_ahead
from include.database.named import query
from include.database.sessions import SessionLimits, open_connection
from include.gateway.ports import ChangeKey, GatewayClock, KeyReused, Saved
from include.runtime.settings import DatabaseSettings

log = logging.getLogger(__name__)

_THREADS = 8
_MAX_WAITING = 256  # with more the database is too slow: further requests fail at once
_CONNECT_S = 5.0  # see open_connection
_STATEMENTS_TIMED = 3  # a change takes at most so many statement timeouts, unless the server hangs
_FORGET_EVERY_S = 10.0
_FORGET_BATCH = 1000

_STATEMENTS = {
    MEMBER.name: {"create": "insert_member", "update": "update_member", "delete": "delete_member"},
    BOARD.name: {
        "create": "insert_board_document",
        "update": "update_board_document",
        "delete": "delete_board_document",
    },
}

Row = tuple[Any, ...]
Result = TypeVar("Result")


class PostgresSystemOfRecord:
    """Implements `ports.SystemOfRecord`: one transaction per change, committed before the call returns.

    `timeout_s` limits a statement, its wait for a lock, and a change's wait in the queue; connecting can take 5 s more.
    Keys are kept for `key_window_s`.
    """

    def __init__(
        self, database: DatabaseSettings, clock: GatewayClock, timeout_s: float, key_window_s: float = 86_400.0
    ) -> None:
        self._database = database
        self._clock = clock
        self._timeout_s = timeout_s
        self._key_window_s = key_window_s
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="system-of-record")
        self._idle: deque[Connection] = deque()  # used last in, first out, so that surplus connections stay idle
        self._waiting = 0
        self._forget_at_s = 0.0

    async def create(self, topic: Topic, fields: Mapping[str, object], key: ChangeKey | None = None) -> Saved:
        """See ports.SystemOfRecord.create."""
        saved = await self._change(topic, "create", _parameters(topic, fields), key)
        if saved is None:
            raise DatabaseUnavailable("the database returned no row for an insert", table=topic.name)
        return saved

    async def update(
        self, topic: Topic, row_id: int, fields: Mapping[str, object], key: ChangeKey | None = None
    ) -> Saved | None:
        """See ports.SystemOfRecord.update."""
        return await self._change(topic, "update", {**_parameters(topic, fields), "id": row_id}, key)

    async def delete(self, topic: Topic, row_id: int, key: ChangeKey | None = None) -> Saved | None:
        """See ports.SystemOfRecord.delete."""
        return await self._change(topic, "delete", {"id": row_id}, key)

    async def close(self) -> None:
        """See ports.SystemOfRecord.close."""
        await asyncio.to_thread(self._pool.shutdown)
        while self._idle:
            self._idle.pop().close()

    async def _change(
        self, topic: Topic, change: str, parameters: Mapping[str, object], key: ChangeKey | None
    ) -> Saved | None:
        statement = query(_STATEMENTS[topic.name][change], self._database.pipeline)
        latest = self._clock.latest()  # in the event loop: the gateway's clock is not thread-safe

        def plain(cursor: Cursor) -> Saved | None:
            cursor.execute(statement, parameters)
            row = cursor.fetchone()
            if row is None:
                return None
            saved = _saved(topic, change, row)
            require_not_ahead(topic, saved.modified_at, latest)
            return saved

        def once(cursor: Cursor) -> Saved | None:
            assert key is not None
            found = self._claim(cursor, topic, key)
            if found is not None:
                return found
            saved = plain(cursor)
            if saved is None:
                cursor.connection.rollback()  # nothing changed, so the key is not used up
            else:
                _save_key(cursor, key, saved)
            return saved

        saved = await self._run(plain if key is None else once)
        if key is not None:
            self._forget_expired()
        return saved

    def _claim(self, cursor: Cursor, topic: Topic, key: ChangeKey) -> Saved | None:
        change_key = {"scope": key.scope, "key": key.key}
        claim = {**change_key, "fingerprint": key.fingerprint, "topic": topic.name, "window_s": self._key_window_s}
        cursor.execute(query("claim_change_key", cursor), claim)
        if cursor.fetchone() is not None:
            return None
        cursor.execute(query("select_change_key", cursor), change_key)
        row = cursor.fetchone()
        if row is None:  # it expired and was deleted between the two statements
            raise DatabaseUnavailable("the key expired during the call", table="change_key")
        fingerprint, row_id, created_at, modified_at, value = row
        if bytes(fingerprint) != key.fingerprint:
            raise KeyReused(table=topic.name)
        return Saved(
            row_id, created_at, modified_at, value and {field.name: value[field.name] for field in topic.fields}
        )

    def _forget_expired(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._forget_at_s:
            return
        self._forget_at_s = now_s + _FORGET_EVERY_S

        def forget(cursor: Cursor) -> int:
            cursor.execute(
                query("delete_expired_change_keys", cursor), {"window_s": self._key_window_s, "limit": _FORGET_BATCH}
            )
            return int(cursor.rowcount)

        def forget_in_thread() -> None:
            try:
                if self._transaction(forget, []) == _FORGET_BATCH:
                    self._forget_at_s = 0.0  # there are more: the next change deletes again, so they cannot pile up
            except DatabaseUnavailable as exc:
                log.warning("expired keys not deleted, a later change tries again: %s", exc)

        self._pool.submit(forget_in_thread)

    async def _run(self, work: Callable[[Cursor], Result]) -> Result:
        if self._waiting >= _MAX_WAITING:
            raise DatabaseUnavailable("too many requests wait for the database", waiting=self._waiting)
        began_s = time.monotonic()
        held: list[Connection] = []

        def in_thread() -> Result:
            if time.monotonic() > began_s + self._timeout_s:
                # not started, so nothing is half done; queued requests must not wait for one timeout after another
                raise DatabaseUnavailable("the database is too slow for the requests that wait for it")
            return self._transaction(work, held)

        self._waiting += 1
        try:
            async with asyncio.timeout(_CONNECT_S + _STATEMENTS_TIMED * self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, in_thread)
        except TimeoutError as exc:
            for connection in held:
                _cut(connection)
            raise DatabaseUnavailable("the database does not answer") from exc
        finally:
            self._waiting -= 1

    def _transaction(self, work: Callable[[Cursor], Result], held: list[Connection]) -> Result:
        # Runs in a thread of the pool. An idle connection may be dead since a restart of the server. Work that failed
        # before its commit was sent has changed nothing and is repeated; a failed commit is not.
        while True:
            connection, is_new = self._connection()
            held[:] = [connection]
            try:
                with connection.cursor() as cursor:
                    result = work(cursor)
            except psycopg2.Error as exc:
                is_dead = connection.closed != 0
                connection.close()
                if is_dead and not is_new:
                    continue
                raise _unavailable(exc) from exc
            except BaseException:
                connection.close()  # its transaction ends with it
                raise
            try:
                connection.commit()
            except psycopg2.Error as exc:
                connection.close()
                raise _unavailable(exc) from exc
            self._idle.append(connection)
            return result

    def _connection(self) -> tuple[Connection, bool]:
        try:
            return self._idle.pop(), False
        except IndexError:
            limits = SessionLimits(statement_s=self._timeout_s, lock_s=self._timeout_s)
            return open_connection(self._database, "gateway", "gateway", limits), True


def require_not_ahead(topic: Topic, modified_at: dt.datetime, latest: dt.datetime) -> None:
    """Raise DatabaseClockAhead if readers would reject the row's record for its version."""
    if dated_ahead(topic, "", "", modified_at, latest, "", GATEWAY_MARGIN):
        raise DatabaseClockAhead(table=topic.name, modified_at=rfc3339(modified_at), now=rfc3339(latest))


def saved_row(topic: Topic, row: Row) -> Saved:
    """Convert a row that a topic's statements return: the columns of a member, or id, document and time of a board."""
    if topic is BOARD:
        row_id, document, modified_at = row
        value = {field.name: document.get(field.name) for field in topic.fields}
        created = SITE_PIPELINE.day_field
        return Saved(row_id, parse_timestamp(document[created]), modified_at, value)
    value = {
        field.name: rfc3339(cell) if isinstance(cell, dt.datetime) else cell
        for field, cell in zip(topic.fields, row, strict=True)
    }
    created_at, modified_at = row[-2:]
    return Saved(row[0], created_at, modified_at, value)


def _saved(topic: Topic, change: str, row: Row) -> Saved:
    if change == "delete":
        return Saved(id=row[0], created_at=None, modified_at=row[1], value=None)
    return saved_row(topic, row)


def _cut(connection: Connection) -> None:
    # Wakes the thread that waits for a silent server with an error. Closing the connection would wait for the thread.
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg2.Error) as exc:
        log.debug("nothing to cut: %s", type(exc).__name__)


def _save_key(cursor: Cursor, key: ChangeKey, saved: Saved) -> None:
    parameters = {
        "scope": key.scope,
        "key": key.key,
        "row_id": saved.id,
        "created_at": saved.created_at,
        "modified_at": saved.modified_at,
        "value": None if saved.value is None else json.dumps(saved.value, ensure_ascii=False),
    }
    cursor.execute(query("save_change_key", cursor), parameters)


def _unavailable(exc: psycopg2.Error) -> DatabaseUnavailable:
    # by code and type only: the server's text quotes the row
    return DatabaseUnavailable(sqlstate=exc.pgcode or "none", kind=type(exc).__name__)


def _parameters(topic: Topic, fields: Mapping[str, object]) -> dict[str, object]:
    if topic is BOARD:
        return {"fields": json.dumps(fields, ensure_ascii=False)}
    return {snake_case(field.name): fields.get(field.name) for field in topic.fields}
