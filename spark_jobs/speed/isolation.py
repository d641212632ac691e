"""Isolates a record that cannot be processed: narrows a batch that fails repeatedly down to that record.

A failure counts only if Kafka and PostgreSQL respond, the lease is held, and an empty batch succeeds. Any other failure
is transient or not caused by a record. A batch that failed three times is processed in steps, each an eighth of the one
that failed. A single record that failed three times becomes a reject. After a failure that does not count, the next
driver takes an eighth, too: a large step may never end in time.
Steps are saved before they start (`StreamTrials`), so that a step that kills the process counts too.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from include.contracts.errors import RecordsRefused, Stopping
from include.contracts.offsets import OffsetRange, Offsets
from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.sessions import KeptConnection
from include.runtime.settings import DatabaseSettings
from spark_jobs.connectors.failures import cause_of, is_end_of_jvm

log = logging.getLogger(__name__)


class Trial(NamedTuple):
    """The tries of a query to process the records from certain offsets on.

    `at` has the offsets, in the batch's form. `size` is the number of records per try, None for whole batches.
    `failures` counts failures of the present step, or drivers that began here; `rejected` counts consecutive records
    that became rejects.
    """

    at: Any
    size: int | None = None
    failures: int = 0
    rejected: int = 0
    reason: str | None = None


class StreamTrials:
    """The trial of one query on one topic. Each call is one short transaction. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings, lease: DriverLease, consumer: str, topic_id: str) -> None:
        self._lease = lease
        self._key = {"consumer": consumer, "topic_id": topic_id}
        self._connection = KeptConnection(database, "stream", f"{consumer} trials")

    def load(self) -> Trial | None:
        """Return the last saved trial; None if there never was one."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_stream_trial", cursor), self._key)
            row = cursor.fetchone()
        return None if row is None else Trial._make(row)

    def save(self, trial: Trial) -> None:
        """Save the trial, in place of the last one. Raises DriverSuperseded."""
        with self._connection.transaction() as cursor:
            self._lease.hold(cursor)
            cursor.execute(
                query("save_stream_trial", cursor), self._key | trial._asdict() | {"at": json.dumps(trial.at)}
            )


MAX_FAILURES = 3
MAX_REJECTED_IN_A_ROW = 3
NARROWED = 8  # with halving, a record that kills the process would kill twice as many
PROCESS_ENDED = "the driver's process ended while it took this record"


class Batch(Protocol):
    """Records in an order that is the same after a restart."""

    @property
    def count(self) -> int:
        """The number of records, at most."""

    @property
    def at(self) -> Any:
        """Its position as a JSON value, which tells the next driver where this one was."""

    def is_at(self, at: Any) -> bool:
        """True if the batch starts at the position."""

    def resumed(self, at: Any) -> Self:
        """Return the batch that continues from the position."""

    def cut(self, count: int) -> tuple[Self, Self]:
        """Return the first records, at most `count`, and the rest."""


Records = TypeVar("Records", bound=Batch)


class Isolation(Generic[Records]):
    """Processes batches of one query and isolates failing records. Not thread-safe."""

    def __init__(
        self,
        trials: StreamTrials,
        take: Callable[[Records], object],
        reject: Callable[[Records, str], None],
        is_passing: Callable[[Exception], bool],
        probe: Callable[[], object],
        stop: threading.Event,
        wait_out: Callable[[Callable[[], Any]], Any] = lambda call: call(),
    ) -> None:
        """`take` processes a batch completely, including progress.

        `reject` makes a reject of a batch of one record and advances the query past it. `is_passing` is true for errors
        that records do not cause; `probe` raises such an error while a server is down or the lease is lost. `wait_out`
        retries a call that raises Retryable.
        """
        self._trials = trials
        self._take = take
        self._reject = reject
        self._is_passing = is_passing
        self._probe = probe
        self._stop = stop
        self._wait_out = wait_out
        self._rejected = 0  # in a row

    def load(self) -> Trial | None:
        """Return the trial that the last driver saved; None if there is none."""
        trial: Trial | None = self._wait_out(self._trials.load)
        self._rejected = trial.rejected if trial else 0
        return trial

    def begin(self, batch: Records) -> Records | None:
        """Process the batch in steps if three drivers ended after starting it; resume at the step of the last one.

        Returns the batch that was processed; None if none was. This driver is then counted as one that started the
        batch. A driver that ends for another reason is counted as well, which is harmless: later drivers process the
        batch in steps, and reject only records that fail.
        """
        trial = self.load()
        if trial is None or not batch.is_at(trial.at):  # records were processed since
            trial, self._rejected = Trial(batch.at), 0
        if not batch.count:
            self._save(trial)  # what the last driver tried may have been processed
            return None
        if trial.size is None and trial.failures < MAX_FAILURES:
            self._save(trial._replace(failures=trial.failures + 1))
            return None
        log.warning("drivers ended at %s, %d in a row", trial.at, trial.failures)
        if trial.size is None:  # of the failed batch only the start is known
            trial = Trial(batch.at, batch.count, MAX_FAILURES if batch.count > 1 else 0)
        else:
            batch = batch.resumed(trial.at)
        self._in_steps(batch, trial)
        return batch

    def run(self, process: Callable[[], object], left: Callable[[], Records], is_taken: bool = True) -> None:
        """Process a batch; if it fails three times, process the rest of it, `left`, in steps.

        `is_taken` is false if the batch is not yet processed when `process` returns, because another thread does it.
        """
        reason = ""
        for failures in range(1, MAX_FAILURES + 1):
            try:
                process()
            except Exception as exc:
                self._raise_unless_counted(exc)
                log.exception("the batch failed, %d of %d times", failures, MAX_FAILURES)
                reason = cause_of(exc)
            else:
                if is_taken:
                    self._rejected = 0
                return
        batch = left()
        self._in_steps(batch, Trial(batch.at, batch.count, MAX_FAILURES, reason=reason))

    def take(self, batch: Records, trial: Trial | None = None) -> None:
        """Process the batch, in steps after it failed three times. `trial` is the saved state of earlier attempts."""
        self._in_steps(batch, trial or Trial(batch.at, batch.count), untried=batch.count)

    def _in_steps(self, rest: Records, trial: Trial, untried: int = 0) -> None:
        """Process the batch in steps. A step of one record, or of `untried` records, is tried three times, others once.

        Raises RecordsRefused, Stopping, and errors that records do not cause.
        """
        size = trial.size or rest.count
        # records left of the last failed step; until they are processed, steps do not grow
        suspects = rest.count if size < rest.count else 0
        while rest.count:
            if self._stop.is_set():
                raise Stopping
            size = min(size, rest.count)
            step, after = rest.cut(size)
            tries = MAX_FAILURES if size in (1, untried) else 1
            trial = self._tried(step, trial._replace(at=step.at, size=size), tries)
            if trial.failures:
                self._take(rest.cut(0)[0])  # an empty batch: if that fails too, the records are not the cause
            if trial.failures and size > 1:
                suspects, size = size, max(1, size // NARROWED)
                log.warning("one of %d records cannot be processed: trying %d at a time", suspects, size)
            else:
                if trial.failures:
                    self._give_up(step, after, trial)
                rest, suspects = after, suspects - size
                size *= NARROWED if suspects <= 0 else 1
            trial = Trial(rest.at)
        self._save(Trial(rest.at))  # else the last step would look as if it had failed

    def _tried(self, step: Records, trial: Trial, times: int) -> Trial:
        """Try the step up to `times` times; returns its trial with the failures, 0 if it was processed."""
        while trial.failures < times:
            # saved before it starts, because a step that kills the process has failed
            failed = trial._replace(failures=trial.failures + 1)
            self._save(failed._replace(reason=trial.reason or PROCESS_ENDED))
            try:
                self._take(step)
            except Exception as exc:  # noqa: BLE001  # a record can cause any error
                try:
                    self._raise_unless_counted(exc)
                except Exception:
                    if self._stop.is_set():
                        self._trials.save(trial._replace(rejected=self._rejected))  # the failure does not count
                    elif not is_end_of_jvm(exc):  # nor this one, but the step may take longer than a transaction may
                        self._trials.save(
                            trial._replace(size=max(1, step.count // NARROWED), failures=0, rejected=self._rejected)
                        )
                    raise
                log.warning("%d offsets from %s on failed: %s", step.count, trial.at, cause_of(exc))
                trial = failed._replace(reason=cause_of(exc))
            else:
                self._rejected = 0
                return trial._replace(failures=0)
        return trial

    def _give_up(self, record: Records, after: Records, trial: Trial) -> None:
        if self._rejected >= MAX_REJECTED_IN_A_ROW:
            self._save(trial._replace(failures=MAX_FAILURES - 1))  # the next driver retries it once
            raise RecordsRefused(in_a_row=self._rejected, next=trial.at, reason=trial.reason)
        self._reject(record, trial.reason or PROCESS_ENDED)
        self._rejected += 1
        self._save(Trial(after.at))

    def _save(self, trial: Trial) -> None:
        self._wait_out(lambda: self._trials.save(trial._replace(rejected=self._rejected)))

    def _raise_unless_counted(self, exc: Exception) -> None:
        if self._stop.is_set() or self._is_passing(exc):
            raise exc
        self._probe()


def reason_of_reject(topic: str, partition: int, offset: int, cause: str) -> str:
    """Return the reason of a reject whose record keeps its contract but cannot be processed."""
    remedy = "find the error in the stream's log; when its cause is mended, send the record again"
    return f"/: {topic}/{partition}/{offset} cannot be taken: {cause}; {remedy}"


def first_batch(start: Offsets, ends: Offsets, most: int) -> OffsetRange:
    """Return the first batch of Spark's source: up to `most` records, shared among partitions in proportion to lag."""
    left = {partition: max(0, end - start.get(partition, 0)) for partition, end in ends.items()}
    total = max(most, sum(left.values()))
    return OffsetRange(start, {p: start.get(p, 0) + -(-count * most // total) for p, count in left.items()})
