"""Builds the `Isolation` of each query, over offset ranges of its topic."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.reject import Reject
from include.database.driver_lease import DriverLease
from include.kafka.offsets import OffsetReader
from include.kafka.topic_tail import read_as_rejects
from spark_jobs.connectors.failures import is_passing
from spark_jobs.speed.driver_state import DriverState
from spark_jobs.speed.isolation import Isolation, reason_of_reject
from spark_jobs.speed.stream_trials import StreamTrials

log = logging.getLogger(__name__)


class Isolations:
    """Creates isolations for the queries of one driver."""

    def __init__(
        self, offset_reader: OffsetReader, lease: DriverLease, state: DriverState, stop: threading.Event,
        wait_out: Callable[[Callable[[], Any]], Any],
    ) -> None:  # fmt: skip
        """`wait_out` retries a call while a server is down."""
        self._offset_reader = offset_reader
        self._lease = lease
        self._state = state
        self._stop = stop
        self._wait_out = wait_out

    def of_topic(
        self,
        trials: StreamTrials,
        topic: str,
        take: Callable[[OffsetRange], object],
        reject: Callable[[Sequence[Reject], Offsets], object],
    ) -> Isolation[OffsetRange]:
        """Return the isolation of a query over its topic. `reject` saves rejects and advances the query to the ends."""

        def reject_step(step: OffsetRange, reason: str) -> None:
            rejected = [
                each._replace(reason=reason_of_reject(topic, each.partition, each.offset, reason))
                for each in read_as_rejects(self._offset_reader.kafka, topic, step, reason)
            ]
            for each in rejected:
                log.error("%s/%d/%d becomes a reject: %s", topic, each.partition, each.offset, reason)
            reject(rejected, step.end)
            self._state.add_count("isolated", len(rejected))

        return self.of(trials, topic, take, reject_step)

    def of(self, trials: StreamTrials, topic: str, take: Callable[[Any], object],
           reject: Callable[[Any, str], None]) -> Isolation[Any]:  # fmt: skip
        """Return an isolation over batches of any type with records of the topic."""

        def probe() -> None:
            self._lease.check()  # also fails if PostgreSQL is down
            self._offset_reader.ends(topic)

        return Isolation(trials, take, reject, is_passing, probe, self._stop, self._wait_out)


def first_batch(start: Offsets, ends: Offsets, most: int) -> OffsetRange:
    """Return the first batch of Spark's source: up to `most` records, shared among partitions in proportion to lag."""
    left = {partition: max(0, end - start.get(partition, 0)) for partition, end in ends.items()}
    total = max(most, sum(left.values()))
    return OffsetRange(start, {p: start.get(p, 0) + -(-count * most // total) for p, count in left.items()})
