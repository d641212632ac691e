"""Records that keep their contract and that no driver can take: failpoints say so. Among others that must arrive."""

import json
from typing import Any

from include.runtime.settings import Settings
from tests.faults.stream_bulk import new_id
from tests.faults.stream_topics import Place
from tests.servers import wait_until
from tests.support.pipeline import produce, rows
from tests.support.records import value_of
from tests.support.sending import Sender

_OTHERS = 5
_PENDING_S = 180.0
_IS_PENDING = """
SELECT 1 FROM pending_record
 WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s AND sent_at IS NULL
"""


class Poison:
    """One such record, for a failpoint of `include.runtime.failpoints.RECORD_FAILPOINTS`."""

    def __init__(self, settings: Settings, place: str) -> None:
        self._settings = settings
        self._is_of_details = place.startswith("serve.")
        self._must_wait = place == "resolve.records"
        self._pipeline = settings.pipeline
        self._joined = new_id()

    def send(self) -> Place:
        """Send it with its neighbours; returns its coordinates."""
        before, after = self._others(), self._others()
        if not self._must_wait:
            self._send_joined()
        produce(self._settings, before)
        key, pipeline = new_id(), self._pipeline
        if self._is_of_details:
            at = self._sent(pipeline.output.name, key, self._detail(key))
        else:
            at = self._sent(pipeline.stream.name, key, self._value(key))
        produce(self._settings, after)
        return at

    def release(self, at: Place) -> None:
        """If it is a pending record, send the one that it waits for."""
        if self._must_wait:
            wait_until(lambda: rows(self._settings, _IS_PENDING, at._asdict()) != [], _PENDING_S, f"{at} waits")
            self._send_joined()

    def _send_joined(self) -> None:
        table = self._pipeline.table
        produce(self._settings, [(table.name, self._joined, value_of(table, self._joined))])

    def _others(self) -> list[tuple[str, object, object]]:
        keys = [new_id() for _ in range(_OTHERS)]
        return [(self._pipeline.stream.name, key, self._value(key)) for key in keys]

    def _value(self, key: int) -> dict[str, Any]:
        return value_of(self._pipeline.stream, key) | {self._pipeline.join_field: self._joined}

    def _detail(self, key: int) -> dict[str, Any]:
        """Return the value that the join would send for the record."""
        values = {"stream": self._value(key), "table": value_of(self._pipeline.table, self._joined)}
        return {column.output: values[column.side][column.source] for column in self._pipeline.columns}

    def _sent(self, topic: str, key: int, value: dict[str, Any]) -> Place:
        sender = Sender(self._settings.kafka.bootstrap_servers)
        source = {self._pipeline.stream.source_header: f"{self._pipeline.stream.name}/9/9"}
        sender.send(topic, json.dumps(value), str(key), headers=source)
        (found,) = sender.finish()
        partition, offset = found.partition(), found.offset()
        assert partition is not None
        assert offset is not None
        return Place(topic, partition, offset)
