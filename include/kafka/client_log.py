"""The log of librdkafka, as entries of `logging`; on its own it writes lines of its own form to standard error."""

import logging

from include.runtime.kafka_connection import KafkaConnection

client_log = logging.getLogger("include.kafka.librdkafka")


def client_settings(kafka: KafkaConnection) -> dict[str, object]:
    """Return the settings of a client whose log goes to `client_log`. Its calls of `poll` or `consume` pass it on."""
    return {**kafka.librdkafka(), "logger": client_log}


class _Seldom(logging.Filter):
    """Passes one line per facility and interval: an unreachable broker causes twenty lines per second."""

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        facility = record.getMessage().partition(" ")[0]
        if record.created < self._next.get(facility, 0.0):
            return False
        self._next[facility] = record.created + self._interval_s
        return True


client_log.addFilter(_Seldom(interval_s=30))
