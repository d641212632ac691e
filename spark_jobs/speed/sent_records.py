"""Reads from the output topic which records of the stream were sent, after the database is behind Kafka."""

import datetime as dt
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.definition import Definition
from include.contracts.fields import END_INSTANT, FIRST_INSTANT
from include.contracts.offsets import OffsetRange, Offsets
from include.contracts.versions import record_time
from include.database.offset_ledger import REPLACED, OffsetLedger, replaced_partition
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.kafka.record_table import raw_schema, record_table
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.decoding.arrow import array, coordinates, first_header
from spark_jobs.speed.stream_query import DriverContext

_COORDINATES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_BROKER_CLOCKS = dt.timedelta(minutes=1)  # by which those of two brokers may differ


class Sent(NamedTuple):
    """Partitions and offsets of records of the stream that the output has.

    Of records before `known_from` it may have had more, which expired.
    """

    places: pa.Table
    known_from: dt.datetime | None

    def next_offset(self, partition: int) -> int:
        """Return the offset after the last of them in a partition; 0 if there is none."""
        last = pc.max(self.places.filter(pc.field("partition") == partition)["offset"]).as_py()
        return 0 if last is None else last + 1

    def within(self, range_: OffsetRange) -> "Sent":
        """Return those that are in the range."""
        parts = [
            self.places.filter((pc.field("partition") == partition) & (pc.field("offset") < end)
                               & (pc.field("offset") >= range_.start.get(partition, 0)))
            for partition, end in range_.end.items()
        ]  # fmt: skip
        return self._replace(places=pa.concat_tables([self.places.slice(0, 0), *parts]).combine_chunks())


def sent_records(context: DriverContext, definition: Definition, range_: OffsetRange) -> Sent:
    """Return which records were sent of the range, and of what the database does not know to be served.

    Raises as `sent_since`.
    """
    oldest = _oldest_time(context.settings.kafka.connection, definition.stream.name, range_)
    return sent_since(oldest, context.offset_reader, context.ledger, definition)


def sent_since(oldest: dt.datetime, offset_reader: OffsetReader, ledger: OffsetLedger, definition: Definition) -> Sent:
    """Return which records of the stream were sent that are of this time or later, and others.

    A joined record is not older than the record of the stream, except by the clocks of two brokers. So the output is
    read from that time, or from where *serve* is. Raises as `TopicTail.iter_to`.
    """
    kafka, stream, output = offset_reader.kafka, definition.stream.name, definition.output.name
    topic_id, available = offset_reader.topic_id(output), offset_reader.available(output)

    def offsets_of(consumer: str) -> Offsets:
        return {each.partition: each.next_offset for each in ledger.entries(consumer, output)
                if each.topic_id == topic_id}  # fmt: skip

    served, replaced = offsets_of("serve"), offsets_of(REPLACED)
    lost = {each: offsets_of(replaced_partition(each)) for each in offset_reader.partitions(stream)}
    since = offset_reader.at(output, oldest - _BROKER_CLOCKS)
    start = {  # records before those of `replaced` name places of a former topic
        partition: max(first, replaced.get(partition, 0), min(since.get(partition, 0), served.get(partition, 0)))
        for partition, first in available.start.items()
    }
    expired = [partition for partition, first in available.start.items() if first > 0]
    firsts = offset_reader.first_times(output) if expired else {}
    # of a partition that is empty all expired, and the records that were joined are older
    known_from = max((firsts[partition] for partition in expired if partition in firsts), default=None)
    rows: list[pa.Table] = [_COORDINATES.empty_table()]
    with closing(TopicTail(kafka, output)) as tail:
        tail.begin(start)
        for messages in tail.iter_to(available.end):
            records = record_table(messages, raw_schema({"headers", "partition", "offset"}))
            sources = first_header(array(records["headers"]), definition.stream.source_header)
            is_stream = pc.fill_null(pc.starts_with(sources, f"{stream}/".encode()), False)
            at = pa.Table.from_arrays(coordinates(sources.filter(is_stream)), schema=_COORDINATES)
            at = _not_lost(at, records.filter(is_stream), lost)
            rows.append(at.drop_null())  # null without coordinates: a record of another producer
    return Sent(pa.concat_tables(rows).combine_chunks(), known_from)


def _not_lost(at: pa.Table, records: pa.Table, lost: Mapping[int, Offsets]) -> pa.Table:
    """Return the places that are not of records which their partition has lost; `records` are those of the output."""
    for partition, ends in lost.items():
        for output, end in ends.items():
            is_lost = pc.and_(
                pc.equal(at["partition"], partition),
                pc.and_(pc.equal(records["partition"], output), pc.less(records["offset"], end)),
            )
            keeps = pc.invert(pc.fill_null(is_lost, False))
            at, records = at.filter(keeps), records.filter(keeps)
    return at


def _oldest_time(kafka: KafkaConnection, topic: str, range_: OffsetRange) -> dt.datetime:
    """Return the time of the oldest record of the range; the end of time for a range without records."""
    left = {partition for partition, end in range_.end.items() if range_.start.get(partition, 0) < end}
    oldest = END_INSTANT
    if not left:
        return oldest
    with closing(TopicTail(kafka, topic)) as tail:
        tail.begin(range_.start)
        for messages in tail.iter_to(range_.end):
            for each in messages:
                if each.partition() in left:
                    left.discard(each.partition())
                    oldest = min(oldest, record_time(each) or FIRST_INSTANT)
            if not left:
                break
    return oldest
