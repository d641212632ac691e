"""The base class of the driver's queries: starting offsets, reading, and the streaming query in Spark.

A checkpoint folder is used by one driver only, because queries start from the offset ledger.
"""

import json
import logging
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.contracts.definition import Definition
from include.contracts.errors import PipelineError, Retryable
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.validation import Reject
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger
from include.kafka.offsets import OffsetReader
from include.kafka.reader import read_as_rejects
from include.runtime.retry import NO_LIMIT, retry_transient
from include.runtime.settings import Settings
from include.runtime.tracing import Tracer
from spark_jobs.connectors.failures import is_passing
from spark_jobs.connectors.kafka import stream_reader
from spark_jobs.speed.health.state import DriverState, Query, topics_of
from spark_jobs.speed.isolation import Isolation, StreamTrials, first_batch, reason_of_reject
from spark_jobs.speed.pending_store import PendingStore
from spark_jobs.speed.positions import position_of, raise_on_mismatch, refuse_replaced, starting_position
from spark_jobs.speed.standby import is_running

log = logging.getLogger(__name__)

LEFT_S = 3600.0
STEP = -1  # the id of a batch that Spark did not make


def folder_of(parent: Path, driver_id: str) -> Path:
    """Create the driver's checkpoint folder. Drivers share none, because a superseded one may still be running.

    Folders that have not changed for an hour are removed, except those of drivers that run on this machine.
    """
    parent = parent.resolve()
    folder = parent / driver_id
    folder.mkdir(parents=True)
    for left in parent.iterdir():
        if left.is_dir() and time.time() - left.stat().st_mtime > LEFT_S and not is_running(parent, left.name):
            shutil.rmtree(left, ignore_errors=True)
    return folder


class BatchRanges:
    """Offset ranges of a query's batches, from Spark's offset log, which is written before a batch starts."""

    def __init__(self, folder: Path, topic: str, start: Offsets) -> None:
        """`start` holds the starting offsets of the first batch."""
        self._folder = folder
        self._topic = topic
        self._start = start

    def of(self, batch_id: int) -> OffsetRange:
        """Return the range of a batch."""
        end = self._end(batch_id)
        start = self._end(batch_id - 1) if batch_id else self._start
        return OffsetRange({partition: start.get(partition, 0) for partition in end}, end)

    def _end(self, batch_id: int) -> Offsets:
        lines = (self._folder / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
        return {int(partition): offset for partition, offset in json.loads(lines[2])[self._topic].items()}


RARELY = 10  # every so many ticks

Result = TypeVar("Result")


class QueryFailed(Retryable):
    """A streaming query ended with an error of Spark."""


@dataclass(frozen=True)
class DriverContext:
    """The driver's settings, connections and state, which its queries share. Queries end waits when `stop` is set."""

    settings: Settings
    offset_reader: OffsetReader
    ledger: OffsetLedger
    lease: DriverLease
    store: PendingStore
    state: DriverState
    stop: threading.Event
    tracer: Tracer | None = None

    def retry(self, call: Callable[[], Result], query: Query) -> Result:
        """Make a call again while a server is down, and record that the query waits."""
        return retry_transient(call, NO_LIMIT, self.state.waiting_callback(query), self.stop)


class StreamQuery(ABC):
    """One query of the driver. The driver calls `prepare`, `preload`, `take_position` and `start` in this order.

    A standby calls `check_preloaded` once a second. While the query runs, the main loop calls `check` and the thread of
    the chores calls `tick`, once a second each. Another thread calls `check_topics` every ten seconds, once the query
    has its position. `close` may be called at any time.
    """

    name: ClassVar[Query]
    triggers: ClassVar[int] = 1  # of the query in STREAM_TRIGGER_INTERVAL_S
    _streaming: StreamingQuery

    def __init__(self, context: DriverContext, definition: Definition) -> None:
        self._context = context
        self._definition = definition
        self._topic = topics_of(definition)[self.name]
        self._start: Offsets = {}
        self._topic_id = ""
        self._group = ""
        self._rejected_by_hand: list[tuple[int, int]] = []  # partition and offset
        self._error: PipelineError | None = None  # Spark's exception carries only the text
        self._closing = ExitStack()

    def prepare(self) -> None:
        """Check the query's requirements, before the driver opens a session or supersedes another driver.

        Raises ContractMismatch, PositionRefused. Blocks while a server is down.
        """
        ledger, offset_reader = self._context.ledger, self._context.offset_reader
        self._group = self._retry(self._committing_group)
        raise_on_mismatch(self._retry(lambda: position_of(ledger, offset_reader, self.name, self._topic, self._group)))

    def _committing_group(self) -> str:
        """Return the group whose committed offsets count beside the ledger; see `delivery_group`."""
        return ""

    def preload(self) -> None:  # noqa: B027  *serve* needs nothing
        """Start reading what the query needs from Kafka, before this driver leads."""

    def check_preloaded(self) -> None:  # noqa: B027
        """Raise the error that ended what `preload` started."""

    def take_position(self) -> None:
        """Take the starting offsets from the ledger. Only the holder of the lease may call it.

        Raises as `starting_position`.
        """
        ledger, offset_reader, lease = self._context.ledger, self._context.offset_reader, self._context.lease
        position = self._retry(
            lambda: starting_position(ledger, offset_reader, self.name, self._topic, lease, self._group)
        )
        start = self._start = position.start
        self._topic_id = position.topic_id  # not asked for again: the offsets are of the topic with this id
        self._context.state.set_position(self._topic, start)
        rejected = self._retry(lambda: self._context.store.rejected_by_hand(self._topic))
        self._rejected_by_hand = [(partition, at) for partition, at in rejected if at >= start.get(partition, 0)]

    @abstractmethod
    def start(self, session: SparkSession, checkpoints: Path) -> StreamingQuery:
        """Start the streaming query, with its checkpoint in a folder below `checkpoints`. Blocks while it loads."""

    def check(self) -> None:
        """Raise the error that ended the query, if there is one. Raises QueryFailed if Spark ended it."""
        is_active = self._streaming.isActive  # first: the query ends after it has recorded its error
        if self._error is not None:
            raise self._error
        if not is_active:
            raise QueryFailed(query=self.name, error=self._streaming.exception())

    def tick(self) -> None:  # noqa: B027  *serve* has none
        """Do the query's periodic work, which may wait for a batch."""

    def check_topics(self) -> None:
        """Raise TopicReplaced if the topic was created again. Waits for no batch."""
        refuse_replaced(self._context.offset_reader, self.name, self._topic, self._topic_id)

    def close(self) -> None:
        """Stop the streaming query, and close everything that it opened."""
        self._closing.close()

    def _retry(self, call: Callable[[], Result]) -> Result:
        return self._context.retry(call, self.name)

    def _isolation(
        self, consumer: str, take: Callable[[Any], object], reject: Callable[[Any, str], None]
    ) -> Isolation[Any]:
        """Return an isolation over batches of any type with records of the topic; the consumer's trials are saved."""
        context = self._context
        trials = StreamTrials(context.settings.database, context.lease, consumer, self._topic_id)

        def probe() -> None:
            context.lease.check()  # also fails if PostgreSQL is down
            context.offset_reader.ends(self._topic)

        return Isolation(trials, take, reject, is_passing, probe, context.stop, self._retry)

    def _topic_isolation(
        self,
        take: Callable[[OffsetRange], object],
        reject: Callable[[Sequence[Reject], Offsets], object],
        consumer: str = "",
    ) -> Isolation[OffsetRange]:
        """Return the isolation of the query over its topic. `reject` saves rejects and advances past them.

        `consumer` is that of the trials, by default the query.
        """

        def reject_step(step: OffsetRange, reason: str) -> None:
            rejected = [
                each._replace(reason=reason_of_reject(self._topic, each.partition, each.offset, reason))
                for each in read_as_rejects(self._context.offset_reader.kafka, self._topic, step, reason)
            ]
            for each in rejected:
                log.error("%s/%d/%d becomes a reject: %s", self._topic, each.partition, each.offset, reason)
            reject(rejected, step.end)
            self._context.state.add_count("isolated", len(rejected))

        return self._isolation(consumer or self.name, take, reject_step)

    def _begin(self, isolation: Isolation[OffsetRange], most: int) -> OffsetRange:
        """Take the records that made earlier drivers fail, if there are any. Returns the range of the first batch."""
        taken = isolation.begin(self._first_batch(most))
        if taken is not None:
            self._start = taken.end
        return self._first_batch(most)

    def _first_batch(self, most: int) -> OffsetRange:
        return first_batch(self._start, self._retry(lambda: self._context.offset_reader.ends(self._topic)), most)

    def _topic_stream(self, session: SparkSession, most: int) -> DataFrame:
        """Return the topic as a stream of batches of up to `most` records."""
        kafka = self._context.settings.kafka.connection
        return stream_reader(session, kafka, self._topic, self._start, most).load()

    def _write(
        self, frame: DataFrame, checkpoints: Path, process: Callable[[DataFrame, OffsetRange, int], None]
    ) -> StreamingQuery:
        """Start the streaming query, which calls `process` with each batch, its range and its id."""
        checkpoint = checkpoints / self.name
        ranges = BatchRanges(checkpoint, self._topic, self._start)

        def guarded(batch: DataFrame, batch_id: int) -> None:
            try:
                process(batch, ranges.of(batch_id), batch_id)
            except PipelineError as exc:
                self._error = self._error or exc
                raise

        writer = frame.writeStream.queryName(self.name).foreachBatch(guarded)
        interval = f"{self._context.settings.stream.trigger_interval_s / self.triggers:.3f} seconds"
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime=interval)
        self._streaming = writer.start()
        self._closing.callback(self._streaming.stop)
        return self._streaming
