"""Reads the keys of the table that the records of a batch name, in the driver, before tasks read the batch.

Spark would need a job for it, and would have to keep the batch or read it twice: that costs more than to fetch the
records once more here, where the consumer fetches those of the next batch while Spark works on this one.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from include.contracts.definition import Definition
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.contracts.offsets import OffsetRange
from include.contracts.validation import Reject
from include.kafka.reader import TopicTail
from spark_jobs.decoding.arrow import array
from spark_jobs.decoding.reference import read_record
from spark_jobs.state.segments import Keys

_Key = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


class NamedKeys(NamedTuple):
    """The keys that records name, ascending and unique, how many name each, and the bytes of the records' values."""

    keys: Keys
    counts: Keys
    bytes: int

    def bytes_with(self, rows: pa.Table, key: str) -> int:
        """Return the bytes of the values, and of the texts of these rows for each record that names one.

        `key` is the column of the rows that has the keys.
        """
        texts = [column for column in rows.columns if pa.types.is_string(column.type)]
        if not rows.num_rows or not texts:
            return self.bytes
        lengths = sum(array(pc.fill_null(pc.binary_length(each), 0)).to_numpy().astype(np.int64) for each in texts)
        counts = self.counts[np.searchsorted(self.keys, array(rows[key]).to_numpy())]
        return self.bytes + int(counts @ lengths)


class JoinKeys:
    """Keys of the table by ranges of the stream's topic. Not thread-safe."""

    def __init__(self, tail: TopicTail, definition: Definition) -> None:
        self._tail = tail
        self._executor = ThreadPoolExecutor(1, "join-keys")
        self._begun: tuple[OffsetRange, Future[NamedKeys]] | None = None
        self._topic = definition.stream
        self._column = definition.stream.field(definition.join_field).column
        name = definition.stream.field(definition.join_field).name
        value = msgspec.defstruct("Value", [("key", _Key)], rename={"key": name})
        self._decode = msgspec.json.Decoder(value).decode

    def begin(self, range_: OffsetRange) -> None:
        """Read a range in a thread, of which `of` is called later."""
        self._begun = range_, self._executor.submit(self._read, range_)

    def of(self, range_: OffsetRange) -> NamedKeys:
        """Return the keys that valid records of the range name. Raises as `RangeReader.iter_to`.

        There may be keys of records that are rejected, too.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            wait([begun[1]])
            if begun[0] == range_:
                return begun[1].result()
        return self._read(range_)

    def _read(self, range_: OffsetRange) -> NamedKeys:
        start = {partition: range_.start.get(partition, 0) for partition in range_.end}
        if self._tail.position != start:
            self._tail.begin(start)
        return self.named_by(self._tail.iter_to(range_.end))

    def named_by(self, pages: Iterable[Sequence[Message]]) -> NamedKeys:
        """Return the keys that these records name."""
        keys: list[int] = []
        size = 0
        for messages in pages:
            size += sum(map(len, messages))
            keys += self._iter_named(messages)
        return NamedKeys(*np.unique(np.array(keys, np.int64), return_counts=True), size)

    def _iter_named(self, messages: Iterable[Message]) -> Iterator[int]:
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
