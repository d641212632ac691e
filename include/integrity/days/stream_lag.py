"""Waits for the speed layer to catch up with Kafka. Until then a comparison counts its lag as missing rows."""

import logging
import time
from dataclasses import dataclass

from include.contracts.offsets import Offsets
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.late_members import find_late_members
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)

POLL_S = 0.5
CATCH_UP_S = 60.0


@dataclass(frozen=True)
class SpeedLayerLag:
    """The lag of the speed layer when last polled. `is_caught_up`: it had caught up."""

    is_caught_up: bool
    join_lag: int
    serve_lag: int

    @property
    def behind(self) -> int:
        """Records of both topics that the speed layer has not processed."""
        return self.join_lag + self.serve_lag


def catch_up(settings: Settings) -> SpeedLayerLag:
    """Find late members, and wait up to a minute for the speed layer, so that both have marked published days.

    Raises BrokerUnavailable, TopicChanged, DatabaseUnavailable.
    """
    find_late_members(settings)
    return wait_until_caught_up(settings, CATCH_UP_S)


def wait_until_caught_up(settings: Settings, timeout_s: float = 300) -> SpeedLayerLag:
    """Wait until both queries have processed the records that were in their topics at the call, at most `timeout_s`.

    A speed layer that is down does not stop a rebuild, which reads raw only: `is_caught_up` is then false, and boards
    that it did not serve are counted as missing. Raises BrokerUnavailable, DatabaseUnavailable.
    """
    deadline = time.monotonic() + timeout_s
    offsets = OffsetReader(settings.kafka.connection)
    stream_id, output_id = (
        offsets.topic_id(settings.pipeline.stream.name),
        offsets.topic_id(settings.pipeline.output.name),
    )
    # high watermarks: records after an open transaction were accepted too, and no consumer can read them yet
    boards = offsets.high_watermarks(settings.pipeline.stream.name)
    has_said = False
    while True:
        join_lag = _behind(boards, taken_offsets(settings, "join", stream_id))
        # read after the join's ledger, which advances after the acknowledgements: records sent until then are counted
        details = offsets.high_watermarks(settings.pipeline.output.name)
        serve_lag = _behind(details, taken_offsets(settings, "serve", output_id))
        if join_lag == 0 and serve_lag == 0:
            return SpeedLayerLag(True, 0, 0)
        if time.monotonic() > deadline:
            log.warning("the speed layer is %d boards and %d details behind; going on without it", join_lag, serve_lag)
            return SpeedLayerLag(False, join_lag, serve_lag)
        if not has_said:
            log.info("the speed layer is %d boards and %d details behind; waiting up to %g s", join_lag, serve_lag,
                     timeout_s)  # fmt: skip
            has_said = True
        time.sleep(POLL_S)


def _behind(ends: dict[int, int], at: dict[int, int]) -> int:
    return sum(max(0, end - at.get(partition, 0)) for partition, end in ends.items())


def taken_offsets(settings: Settings, consumer: str, topic_id: str, role: Role = "batch") -> Offsets:
    """Return the next offset of a query of the speed layer in each partition. Raises DatabaseUnavailable."""
    with connect(settings.database, role, "catch-up") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_ledger", cursor), {"consumer": consumer, "topic_id": topic_id})
        return dict(cursor.fetchall())
