"""The errors that cross our own borders, and the exit codes of the commands that end with them.

A docstring is the message's first half; keywords say where.
"""

import os

OK = 0
REFUSED = 1  # trying again will not help
USAGE = 2  # wrong arguments, as argparse has it
TRY_LATER = os.EX_TEMPFAIL  # 75: it can pass by itself
MISCONFIGURED = os.EX_CONFIG  # 78: a setting, a topic or a position in one is wrong; a person has to look first


class PipelineError(Exception):
    """The pipeline could not do what was asked."""

    exit_code: int = REFUSED  # of a command that ends with it

    def __init__(self, message: str = "", **where: object) -> None:
        self.where = where
        text = message or (type(self).__doc__ or "").split("\n", 1)[0]
        place = ", ".join(f"{name}={value}" for name, value in where.items())
        super().__init__(f"{text} ({place})" if place else text)


class Retryable(PipelineError):
    """Trying again later may succeed."""

    exit_code = TRY_LATER


class BrokerUnavailable(Retryable):
    """Kafka did not acknowledge within the timeout."""


class DatabaseUnavailable(Retryable):
    """PostgreSQL cannot be reached."""


class ConfigurationError(PipelineError):
    """A setting is missing or wrong."""

    exit_code = MISCONFIGURED


class ContractMismatch(PipelineError):
    """What exists differs from the contract."""

    exit_code = MISCONFIGURED


class LedgerConflict(PipelineError):
    """Another writer advanced the offset ledger; this one writes nothing."""

    exit_code = TRY_LATER


class DriverSuperseded(PipelineError):
    """A driver started later took over; this one writes no more."""

    exit_code = TRY_LATER


class TableReplaced(PipelineError):
    """The topic of the member table was deleted and made again; the next start loads it, or names the repair."""

    exit_code = TRY_LATER


class ForeignCluster(ConfigurationError):
    """Another Kafka cluster answers than the one that the gateway's events belong to; see runbook gateway-cluster."""


class TopicChanged(Retryable):
    """A topic was deleted and made again while it was read; the next try reads the one that is there."""


class PositionRefused(PipelineError):
    """The offset ledger and the topic do not fit together; going on would lose records unseen."""

    exit_code = MISCONFIGURED


class TopicReplaced(PositionRefused):
    """The topic was deleted and made again since the ledger was written."""


class RangeExpired(PositionRefused):
    """Retention removed records that were not taken yet."""


class LedgerBeyondEnd(PositionRefused):
    """The ledger is beyond the end of the topic: the topic lost records, or was restored to an earlier state."""


class RecordsRefused(PipelineError):
    """One record after the other cannot be taken: that is not because of the records, so no more become rejects."""


class MissingRange(PipelineError):
    """Kafka no longer holds the records that this day needs."""

    exit_code = MISCONFIGURED


class DayBusy(Retryable):
    """Another run holds this day."""


class StaleRun(PipelineError):
    """This run lost its day to another one; it publishes nothing."""


class NothingBuilt(PipelineError):
    """There is no built generation to work on."""


class BalanceBroken(PipelineError):
    """The day's balance does not add up."""
