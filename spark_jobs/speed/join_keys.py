"""Reads the keys of the table that the records of a batch name, in the driver, before tasks read the batch.

Spark would need a job for it, and would have to keep the batch or read it twice: that costs more than to fetch the
records once more here, where the consumer fetches those of the next batch while Spark works on this one.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Annotated

import msgspec
from confluent_kafka import Message

from include.contracts.definition import Definition
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.contracts.offsets import OffsetRange
from include.contracts.validation import Reject
from include.kafka.reader import TopicTail
from spark_jobs.decoding.reference import read_record
from spark_jobs.state.segments import Keys
from spark_jobs.state.table_state import unique_keys

_Key = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


class JoinKeys:
    """Keys of the table by ranges of the stream's topic. Not thread-safe."""

    def __init__(self, tail: TopicTail, definition: Definition) -> None:
        self._tail = tail
        self._executor = ThreadPoolExecutor(1, "join-keys")
        self._begun: tuple[OffsetRange, Future[Keys]] | None = None
        self._topic = definition.stream
        self._column = definition.stream.field(definition.join_field).column
        name = definition.stream.field(definition.join_field).name
        value = msgspec.defstruct("Value", [("key", _Key)], rename={"key": name})
        self._decode = msgspec.json.Decoder(value).decode
        self.bytes = 0  # of keys and values in the range that was read last

    def begin(self, range_: OffsetRange) -> None:
        """Read a range in a thread, of which `of` is called later."""
        self._begun = range_, self._executor.submit(self._read, range_)

    def of(self, range_: OffsetRange) -> Keys:
        """Return the keys that valid records of the range name, ascending and unique. Raises as `RangeReader.iter_to`.

        There may be keys of records that are rejected, too.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            wait([begun[1]])
            if begun[0] == range_:
                return begun[1].result()
        return self._read(range_)

    def _read(self, range_: OffsetRange) -> Keys:
        start = {partition: range_.start.get(partition, 0) for partition in range_.end}
        if self._tail.position != start:
            self._tail.begin(start)
        keys: list[int] = []
        self.bytes = 0
        for messages in self._tail.iter_to(range_.end):
            self.bytes += sum(map(len, messages))
            keys += self.named_by(messages)
        return unique_keys(keys)

    def named_by(self, messages: Iterable[Message]) -> Iterator[int]:
        """Yield the key that each of these records names, if it names one."""
        decode = self._decode
        for message in messages:
            value = message.value()
            if value is None:
                continue  # of a tombstone nothing is joined
            try:
                yield decode(value).key  # type: ignore[attr-defined]  # the struct is made of the definition
            except (msgspec.MsgspecError, ValueError, RecursionError):
                row = read_record(message, self._topic)
                if not isinstance(row, Reject) and not row.deleted:
                    yield row.values[self._column]

    def close(self) -> None:
        """Close the consumer."""
        self._executor.shutdown()
        self._tail.close()
