"""Rejects one record by hand: table reject keeps it, and the stream skips it from its next start on."""

import os
import re
import socket
from dataclasses import dataclass

from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, MissingRange
from include.contracts.offsets import OffsetRange
from include.contracts.validation import Reject
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger
from include.kafka.offsets import OffsetReader
from include.kafka.topic_tail import read_as_rejects
from include.runtime.command import author
from include.runtime.settings import DatabaseSettings
from spark_jobs.speed.driver_state import Query, topics_of
from spark_jobs.speed.pending_store import PendingStore

_RECORD = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9})/(?P<offset>[0-9]{1,18})")
_SHOWN_BYTES = 200
_DONE = "The stream has processed it already: there is nothing to reject."


@dataclass(frozen=True)
class Place:
    """Coordinates of a record in a topic that a query reads."""

    query: Query
    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str, pipeline: Definition) -> "Place":
        """Parse topic/partition/offset, of a topic of the pipeline. Raises ConfigurationError."""
        topics = topics_of(pipeline)
        match = _RECORD.fullmatch(text)
        query = next((query for query, topic in topics.items() if match and topic == match["topic"]), None)
        if match is None or query is None:
            raise ConfigurationError(f"--reject {text!r}: write topic/partition/offset; the topics are "
                                     f"{' and '.join(topics.values())}")  # fmt: skip
        return cls(query, match["topic"], int(match["partition"]), int(match["offset"]))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class ManualReject:
    """Prints one record, and makes it a reject."""

    def __init__(self, database: DatabaseSettings, offset_reader: OffsetReader, ledger: OffsetLedger) -> None:
        self._database = database
        self._offset_reader = offset_reader
        self._ledger = ledger

    def look(self, place: Place) -> tuple[Reject, bool]:
        """Return the record as a reject, and True if the query has processed it. Raises MissingRange if it is gone."""
        topic_id = self._offset_reader.topic_id(place.topic)
        whole = self._offset_reader.available(place.topic)
        found: list[Reject] = []
        if place.partition in whole.end and whole.holds(place.partition, place.offset):
            range_ = OffsetRange({place.partition: place.offset}, {place.partition: place.offset + 1})
            reason = f"rejected by hand by {author()}"
            found = read_as_rejects(self._offset_reader.kafka, place.topic, range_, reason)
        if not found:
            raise MissingRange("the topic has no such record", record=place, first=whole.start.get(place.partition),
                               end=whole.end.get(place.partition))  # fmt: skip
        self._offset_reader.require_ids({place.topic: topic_id})
        taken = [entry.next_offset for entry in self._ledger.entries(place.query, place.topic)
                 if (entry.topic_id, entry.partition) == (topic_id, place.partition)]  # fmt: skip
        return found[0], any(next_offset > place.offset for next_offset in taken)

    def run(self, place: Place, dry_run: bool) -> bool:
        """Print the record, and reject it unless it is a dry run. Returns True if it was rejected."""
        record, is_taken = self.look(place)
        lease = DriverLease(self._database, f"repair-{socket.gethostname()}-{os.getpid()}")
        store = PendingStore(self._database, lease)
        is_pending = store.is_pending(place.topic, place.partition, place.offset)
        print(f"{place}  timestamp {record.kafka_timestamp}")
        print(f"  key    {_shown(record.key)}\n  value  {_shown(record.value)}")
        if is_taken and not is_pending:
            print(_DONE)
            return False
        print("It is pending: its member is not known." if is_pending else "The stream has not processed it yet.")
        if dry_run:
            print("Nothing was changed. Without --dry-run it becomes a reject, and the stream skips it.")
            return False
        lease.take()  # so that an undetected driver can no longer write
        try:
            record, is_taken = self.look(place)  # again: until now, a driver may have processed it
            if is_taken and not store.is_pending(place.topic, place.partition, place.offset):
                print(_DONE)
                return False
            store.reject_by_hand(record)
        finally:
            lease.release()  # else the stream would wait until the lease times out
        print("It is in table reject. Start the stream.")
        return True


def _shown(data: bytes | None) -> str:
    if data is None:
        return "none"
    cut = data[:_SHOWN_BYTES]
    return f"{len(data)} bytes: {cut!r}{'…' if len(data) > len(cut) else ''}"
