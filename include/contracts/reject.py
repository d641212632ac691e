"""A record that breaks its contract, as readers of topics report it and table `reject` keeps it."""

import datetime as dt
from typing import NamedTuple


class Reject(NamedTuple):
    """A record with its coordinates, the reason why it is rejected, and its key and value as they came."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None
    value: bytes | None
    kafka_timestamp: dt.datetime | None
    rejected_by: str = ""  # the consumer that keeps it
