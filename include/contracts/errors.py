"""Errors that cross module boundaries, and the exit codes of commands.

The first line of an error's docstring begins its message; keyword arguments follow as context.

The class of an error is the only place that says whether a retry helps. Its exit code follows from its kind, which is
`Retryable`, `DriverFenced`, `Misconfigured`, `WrongArguments`, or none of these. No other class sets an exit code.
Tasks of Airflow are retried by the class, and Spark jobs by their exit code (decision 58).
"""

import os

OK = 0
CRASHED = 1  # not by an error of the pipeline: a defect, or a Python or a JVM that did not start
USAGE = 2  # wrong arguments; the exit code of click, too
LOOK = 3  # done, but a person has to look at what was found
REFUSED = 4  # a retry does not help
STOPPED = os.EX_SOFTWARE  # 70: supervision stopped the process, because it or a client of a server hung
TRY_LATER = os.EX_TEMPFAIL  # 75: another run may succeed
FENCED = os.EX_PROTOCOL  # 76: a later driver ended the transactions of this one
MISCONFIGURED = os.EX_CONFIG  # 78: a person has to correct something first
EXIT_CODES = (OK, CRASHED, USAGE, LOOK, REFUSED, STOPPED, TRY_LATER, FENCED, MISCONFIGURED)
FINAL = frozenset({USAGE, REFUSED, MISCONFIGURED})  # codes of failures that no retry mends; the others are retried


class PipelineError(Exception):
    """The pipeline could not carry out the request."""

    exit_code = REFUSED  # of a command that fails with this error

    def __init__(self, message: str = "", **where: object) -> None:
        self.where = where
        text = message or (type(self).__doc__ or "").split("\n", 1)[0]
        context = ", ".join(f"{name}={value}" for name, value in where.items())
        super().__init__(f"{text} ({context})" if context else text)


class WrongArguments(PipelineError):
    """The arguments of a command contradict each other, or one is missing."""

    exit_code = USAGE


class Retryable(PipelineError):
    """Another run of the command or of the task may succeed later."""

    exit_code = TRY_LATER


class Misconfigured(PipelineError):
    """A setting, a topic, a position or a file is wrong, and a person has to correct it first."""

    exit_code = MISCONFIGURED


class Transient(Retryable):
    """Another try of the same call may succeed: `retry_transient` repeats it."""


class BrokerUnavailable(Transient):
    """Kafka did not acknowledge within the timeout."""


class DatabaseUnavailable(Transient):
    """PostgreSQL cannot be reached."""


class DatabaseClockAhead(DatabaseUnavailable):
    """PostgreSQL's clock, or a row's last version, is ahead of the gateway's clock; see docs/runbooks/clock.md."""


class ConfigurationError(Misconfigured):
    """A setting is missing or wrong."""


class ContractMismatch(Misconfigured):
    """A topic or a table differs from the contract."""


class LedgerConflict(Retryable):
    """Another writer advanced the offset ledger; this one has written nothing."""


class DriverSuperseded(Retryable):
    """A driver that was started later took over; this one has stopped writing."""


class Stopping(Retryable):
    """The application is stopping; the next driver processes the remaining records."""


class DriverFenced(Retryable):
    """Kafka ended the transactions of this driver, because a later one began; this one sends no more."""

    exit_code = FENCED


class TimelineChanged(DriverSuperseded):
    """The database is a promoted standby, or was restored: the driver starts again from the progress saved there."""


class TableReplaced(Retryable):
    """The topic of the table was deleted and recreated; the next start loads it, or names the repair."""


class ForeignCluster(ConfigurationError):
    """The Kafka cluster that answers is not the one the gateway's events belong to; see runbook gateway-lost."""


class TopicChanged(Transient):
    """A topic was deleted and recreated while it was read; a retry reads the new one."""


class PositionRefused(Misconfigured):
    """The offset ledger does not match the topic; continuing would lose records silently."""


class TopicReplaced(PositionRefused):
    """The topic was deleted and recreated since the ledger was written."""


class RangeExpired(PositionRefused):
    """Retention removed records that were not taken yet."""


class LedgerBeyondEnd(PositionRefused):
    """The ledger is beyond the end of the topic: the topic lost records, or was restored to an earlier state."""


class RecordsRefused(PipelineError):
    """Too many records in a row failed: the cause is not in the records, so no more become rejects."""


class MissingRange(Misconfigured):
    """Kafka no longer holds the records that this day needs."""


class DayBusy(Retryable):
    """The day is locked by another run."""


class StaleRun(PipelineError):
    """Another run took over this day; this run publishes nothing."""


class NothingBuilt(PipelineError):
    """There is no built generation to work on."""


class BalanceBroken(PipelineError):
    """The day's balance does not add up."""
