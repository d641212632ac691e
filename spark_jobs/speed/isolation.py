"""The way past a record that cannot be taken: a batch that fails again and again is narrowed down to that record.

A failure counts when Kafka and PostgreSQL answer, the lease is held, and a batch of no records succeeds: any other
failure passes by itself, or is no record's. A batch that failed three times is taken in steps, each an eighth of the
one that failed. A single record that failed three times becomes a reject.
Steps are saved before they begin (`StreamTrials`), so one that ends the process counts too.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from include.adapters.stream_trials import StreamTrials, Trial
from include.errors import PipelineError, RecordsRefused
from spark_jobs.connectors.failures import cause_of

log = logging.getLogger(__name__)

MAX_FAILURES = 3
MAX_REJECTED_IN_A_ROW = 3
NARROWED = 8  # by halves a record that ends the process would end twice as many
PROCESS_ENDED = "the driver's process ended while it took this record"


class Stopping(PipelineError):
    """The application ends; what was not taken is left to the next start."""


class Batch(Protocol):
    """Records in an order that is the same after a restart."""

    @property
    def count(self) -> int:
        """How many they are at most."""

    @property
    def at(self) -> Any:
        """Its place, as JSON has it: from this the next driver knows where the last one was."""

    def is_at(self, at: Any) -> bool:
        """True if its first record is that of the place."""

    def resumed(self, at: Any) -> Self:
        """The batch of the place, if it is there."""

    def cut(self, count: int) -> tuple[Self, Self]:
        """The first records, at most so many, and the rest."""


Records = TypeVar("Records", bound=Batch)


class Isolation(Generic[Records]):
    """Takes batches of one query. For one thread at a time."""

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
        """`take` does with a batch what the query does, to its end, progress included.

        `reject` makes a reject of a batch of one, and goes on after it. `is_passing` knows errors that no record
        causes; `probe` raises one while a server is out or the lease is lost. `wait_out` repeats what is Retryable.
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
        """What the last driver was about to do."""
        trial: Trial | None = self._wait_out(self._trials.load)
        self._rejected = trial.rejected if trial else 0
        return trial

    def begin(self, batch: Records) -> Records | None:
        """Take the batch if three drivers that began with it ended, or the step at which the last one ended.

        Returns what was taken; None for nothing.

        Otherwise this driver counts as one that began with it. One that ends for a good reason counts as well: the
        next ones then take the batch in steps, and reject nothing that can be taken.
        """
        if not batch.count:
            return None
        trial = self.load()
        if trial is None or not batch.is_at(trial.at):  # records were taken since
            trial, self._rejected = Trial(batch.at), 0
        if trial.size is None and trial.failures < MAX_FAILURES:
            self._save(trial._replace(failures=trial.failures + 1))
            return None
        log.warning("drivers ended at %s, %d in a row", trial.at, trial.failures)
        if trial.size is None:  # of the batch that ended them only this is known: it began here
            trial = Trial(batch.at, batch.count, MAX_FAILURES if batch.count > 1 else 0)
        else:
            batch = batch.resumed(trial.at)
        self._in_steps(batch, trial)
        return batch

    def run(self, process: Callable[[], object], left: Callable[[], Records], is_taken: bool = True) -> None:
        """Process a batch; if that fails three times, take what is left of it in steps.

        `is_taken`: a `process` that returns has taken the batch. False: something else has yet to take it.
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
        """Take the batch, in steps once it failed three times. `trial`: what was tried with it before."""
        if batch.count:
            self._in_steps(batch, trial or Trial(batch.at, batch.count), untried=batch.count)
            self._save(Trial(batch.cut(0)[0].at))

    def _in_steps(self, rest: Records, trial: Trial, untried: int = 0) -> None:
        """Take the batch. A step of one record, or of `untried` ones, must fail three times, any other once.

        Raises RecordsRefused, Stopping, and errors that pass.
        """
        size = trial.size or rest.count
        suspects = 0  # records of the step that failed last: while there are any, no larger step is worth a try
        while rest.count:
            if self._stop.is_set():
                raise Stopping
            size = min(size, rest.count)
            step, after = rest.cut(size)
            tries = MAX_FAILURES if size in (1, untried) else 1
            trial = self._tried(step, trial._replace(at=step.at, size=size), tries)
            if trial.failures:
                self._take(rest.cut(0)[0])  # of no record: if that fails too, it is not the records
            if trial.failures and size > 1:
                suspects, size = size, max(1, size // NARROWED)
                log.warning("one of %d records cannot be taken: %d at a time", suspects, size)
            else:
                if trial.failures:
                    self._give_up(step, after, trial)
                rest, suspects = after, suspects - size
                size *= NARROWED if suspects <= 0 else 1
            trial = Trial(rest.at)

    def _tried(self, step: Records, trial: Trial, times: int) -> Trial:
        """The trial of this step: with so many failures, or none if it was taken."""
        while trial.failures < times:
            # before it begins: a step that ends the process has failed
            failed = trial._replace(failures=trial.failures + 1)
            self._save(failed._replace(reason=trial.reason or PROCESS_ENDED))
            try:
                self._take(step)
            except Exception as exc:  # noqa: BLE001  # whatever a record can cause
                try:
                    self._raise_unless_counted(exc)
                except Exception:
                    self._trials.save(trial._replace(rejected=self._rejected))  # it does not count
                    raise
                log.warning("%d offsets from %s on failed: %s", step.count, trial.at, cause_of(exc))
                trial = failed._replace(reason=cause_of(exc))
            else:
                self._rejected = 0
                return trial._replace(failures=0)
        return trial

    def _give_up(self, record: Records, after: Records, trial: Trial) -> None:
        if self._rejected >= MAX_REJECTED_IN_A_ROW:
            self._save(trial._replace(failures=MAX_FAILURES - 1))  # the next driver tries it once more
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
    """What a reject says that was made of a record which keeps its contract and cannot be taken."""
    remedy = "find the error in the stream's log; when its cause is mended, send the record again"
    return f"/: {topic}/{partition}/{offset} cannot be taken: {cause}; {remedy}"
