"""Reports the progress of a rebuild: one row per generation, and lines in the log."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from include.contracts.day import Day
from include.contracts.errors import DatabaseUnavailable
from include.database.named import query
from include.database.sessions import KeptConnection
from include.runtime.settings import DatabaseSettings

log = logging.getLogger(__name__)

EVERY_S = 1.0
Phase = Literal["reading", "loading", "finishing", "built", "failed"]
_LONGEST_ERROR = 2_000


class RebuildProgress:
    """Updates the row from a thread of its own while `running`, so the load never waits for it."""

    def __init__(
        self, database: DatabaseSettings, generation_id: int, day: Day, records_read: Callable[[], int]
    ) -> None:
        """`records_read` returns the number of records that tasks have read so far."""
        self._connection = KeptConnection(database, "batch", f"rebuild progress {day}")
        self._generation_id = generation_id
        self._day = day
        self._records_read = records_read
        self._phase: Phase = "reading"
        self._logged: tuple[int, ...] = ()
        self._ended = threading.Event()

    @contextmanager
    def running(self, run_id: str, source: str, records_total: int, parts_total: int) -> Iterator["RebuildProgress"]:
        """Insert the row, and update it until the end of the block: then to `built`, or to `failed` with the error."""
        where = {"generation_id": self._generation_id, "day": self._day.date, "run_id": run_id, "source": source,
                 "host": socket.gethostname(), "records_total": records_total, "parts_total": parts_total}  # fmt: skip
        with self._connection.transaction() as cursor:
            cursor.execute(query("fail_lost_rebuild_runs", cursor), where)
            cursor.execute(query("insert_rebuild_run", cursor), where)
        thread = threading.Thread(target=self._follow, name="rebuild-progress", daemon=True)
        thread.start()
        try:
            yield self
        except BaseException as exc:
            self._end(thread, "failed", f"{type(exc).__name__}: {exc}"[:_LONGEST_ERROR])
            raise
        else:
            self._end(thread, "built", None)
        finally:
            self._connection.close()

    def enter(self, phase: Phase) -> None:
        """Set the present phase."""
        self._phase = phase

    def _follow(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._save(self._phase, None)

    def _end(self, thread: threading.Thread, phase: Phase, error: str | None) -> None:
        self._ended.set()
        thread.join()
        self._save(phase, error)

    def _save(self, phase: Phase, error: str | None) -> None:
        values = {"generation_id": self._generation_id, "phase": phase, "records_read": self._records_read(),
                  "error": error}  # fmt: skip
        try:
            with self._connection.transaction() as cursor:
                cursor.execute(query("update_rebuild_run", cursor), values)
                counts = cursor.fetchone()
        except DatabaseUnavailable as exc:
            log.warning("day %s: the rebuild's progress is not saved: %s", self._day, exc)
            return
        if counts is not None and counts != self._logged:
            self._logged = counts
            log.info("day %s: generation %d, %s: %d of %d records read, %d of %d parts loaded, %d rows", self._day,
                     self._generation_id, phase, *counts)  # fmt: skip
