"""Counts the questions that this process asks Kafka and PostgreSQL, and lets something happen before one of them.

A question to Kafka is a request of an admin client: topics, ids, offsets. One to PostgreSQL is a statement.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.database.named import PipelineConnection

_REQUESTS = ("list_topics", "describe_topics", "list_offsets")
WAIT_S = 5.0  # an event that waits for a lock of the transaction that asks goes on after it


class Questions:
    """The questions that were asked so far. `happen` runs once, in another thread, before the question `number`."""

    def __init__(self, number: int, happen: Callable[[], object], wait_s: float) -> None:
        self.asked = 0
        self._number = number
        self._happen = happen
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, "between questions")
        self._event: Future[object] | None = None

    @property
    def has_happened(self) -> bool:
        """True if so many questions were asked."""
        return self._event is not None

    def ask(self) -> None:
        """Count a question. Those that the event itself asks are not counted."""
        with self._lock:
            if self._event is not None:
                return
            self.asked += 1
            if self.asked != self._number:
                return
            self._event = self._executor.submit(self._happen)
        wait([self._event], self._wait_s)

    def end(self) -> None:
        """Wait for the event. Raises its error."""
        self._executor.shutdown()
        if self._event is not None:
            self._event.result()


@contextmanager
def before_question(number: int, happen: Callable[[], object], wait_s: float = WAIT_S) -> Iterator[Questions]:
    """Let `happen` run before the question with that number, from 1 on, of those that the block asks.

    The question is asked after `wait_s` although it still runs.
    """
    questions = Questions(number, happen, wait_s)

    class AskingCursor(Cursor):
        def execute(self, *arguments: Any, **named: Any) -> Any:
            questions.ask()
            return super().execute(*arguments, **named)

    def cursor(self: Connection, *arguments: Any, **named: Any) -> Any:
        return Connection.cursor(self, *arguments, **{"cursor_factory": AskingCursor, **named})

    def asking(request: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            questions.ask()
            return request(*arguments, **named)

        return ask

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelineConnection, "cursor", cursor, raising=False)
        for name in _REQUESTS:
            patch.setattr(AdminClient, name, asking(getattr(AdminClient, name)), raising=False)
        yield questions
    questions.end()
