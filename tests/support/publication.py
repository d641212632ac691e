"""Readers of the view, and processes that publish, for tests of the publication."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg2

from include.contracts.day import Day
from include.contracts.errors import BalanceBroken, NothingBuilt
from include.integrity.days import publication
from include.integrity.days.comparison import verify
from include.runtime.settings import Role, Settings
from tests.servers import wait_until
from tests.support.pipeline import rows

ROOT = Path(__file__).resolve().parents[2]
COUNT = "SELECT title, count(*) FROM board_detail_masked WHERE day = %s GROUP BY title"


def publish(settings: Settings, day: Day, run_id: str | None = None, **how: Any) -> publication.Published:
    """Verify the build and publish it, as a night does. Publishing says itself when there is none, or a broken one."""
    with suppress(NothingBuilt, BalanceBroken):
        verify(settings, day, run_id)
    return publication.publish(settings, day, run_id, **how)


class Reader:
    """Reads the day over and over, each time in a transaction of its own; `seen` counts what it saw."""

    def __init__(self, settings: Settings, day: str, statement: str = COUNT) -> None:
        self.seen: Counter[tuple[tuple[str, int], ...]] = Counter()
        self.errors: list[Exception] = []
        self._settings = settings
        self._day = day
        self._statement = statement
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    @contextmanager
    def reading(self) -> Iterator["Reader"]:
        """Read until the end of the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def _read(self) -> None:
        connection = open_as(self._settings, "analyst")
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                while not self._ended.is_set():
                    cursor.execute(self._statement, (self._day,))
                    self.seen[tuple(sorted(cursor.fetchall()))] += 1
        except psycopg2.Error as exc:
            self.errors.append(exc)
        finally:
            connection.close()


def open_as(settings: Settings, role: Role) -> psycopg2.extensions.connection:
    """A connection as that role, which never waits long for a lock."""
    database = settings.database
    return psycopg2.connect(
        host=database.host, port=database.port, dbname=database.name, user=role, password=database.passwords[role],
        options="-c timezone=UTC -c lock_timeout=5s",
    )  # fmt: skip


_PUBLISHER = """
import itertools, os, signal, sys
from include.contracts.day import Day
from include.integrity.days import pruning
from include.integrity.days import publication
from include.runtime.settings import Role, Settings

settings = Settings.from_environment()
day = Day.parse("2026-11-20", settings.timezone)
plain = publication.query

def killed_at(statement):
    number = itertools.count(1)
    def query(name, of):
        if next(number) == statement:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(name, of)
    return query

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        publication.query = pruning.query = killed_at(int(line))
        exec(sys.argv[1])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class KilledPublisher:
    """Runs `call`, a statement about `publication`, `settings` and `day`, in processes of their own."""

    def __init__(self, call: str, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PUBLISHER, call], env={**os.environ, **variables, "PYTHONPATH": str(ROOT)},
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run_killed_at(self, statement: int) -> int:
        """Run it in a process that is SIGKILLed before its n-th statement; 0 when it came to its end first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)


def wait_for_end_of_backends(settings: Settings, deadline_s: float = 30) -> None:
    """Until no backend of the batch layer is left: that of a killed process ends within a second or so."""
    left = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'batch' AND datname = current_database()"
    wait_until(lambda: rows(settings, left) == [(0,)], deadline_s, "the killed process's backend ends")
