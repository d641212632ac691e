"""The speed layer holds what its rules say, for any events, any order, any split into batches, and any restarts.

Real member table, join and serve, over a real Kafka and PostgreSQL; the expectation is plain Python. Many histories run
side by side, each with keys of its own: a batch costs the same for one as for all.
"""

import contextlib
import dataclasses
import datetime as dt
import itertools
import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from include.contracts.clock import rfc3339
from include.contracts.offsets import OffsetRange
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_jobs.connectors.splits import FileSplit
from spark_jobs.speed.delivery import AtLeastOnce, ExactlyOnce
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.join import StreamTableJoin, keep_rejects
from spark_jobs.speed.join_keys import JoinKeys
from spark_jobs.speed.live_table import LiveTableSink
from spark_jobs.speed.pending_store import PendingStore
from spark_jobs.speed.serve import Serve
from spark_jobs.state.table_state import TableState
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.driver import bounded, driver_context
from tests.support.examples import examples
from tests.support.fenced import refuse_unfenced
from tests.support.oracle import Version, author
from tests.support.pipeline import produce, rows, with_topics
from tests.support.spark import EPOCH, RawRecord, encoded, messages_of, part_of, range_of, raw
from tests.support.topic_log import TopicLog

BATCHES = 4
KEYS = st.integers(1, 3)
KEYS_A_HISTORY = 100
EVENTS_A_HISTORY = 100

_numbers = itertools.count(1)  # histories run so far: keys and offsets are not used again


@dataclasses.dataclass(frozen=True)
class Event:
    """A version, or a broken record, and the batch that it comes in."""

    version: Version
    batch: int
    is_broken: bool


@dataclasses.dataclass(frozen=True)
class Course:
    """The events around each batch, which are independent of its records."""

    restarts: list[bool]  # the driver dies after it sent the batch, and sends it again
    resolves: list[bool]
    serves: list[bool]
    max_bytes: int  # that go through the driver at a time


@st.composite
def histories(draw):
    """Events in the order of their logs. Times are few, so that versions are old, equal and new."""
    events = []
    batches = sorted(draw(st.lists(st.integers(0, BATCHES - 1), min_size=1, max_size=12)))
    for offset, batch in enumerate(batches):
        topic = draw(st.sampled_from(["member", "board", "board"]))
        at = EPOCH + dt.timedelta(hours=draw(st.integers(0, 6)))
        kind = draw(st.integers(0, 11))
        version = Version(topic, draw(KEYS), offset, at, f"e{offset}", created=EPOCH, member=draw(KEYS),
                          name=f"{topic}-v{offset}", deleted=kind == 0)  # fmt: skip
        events.append(Event(version, batch, is_broken=kind == 1))
    return events


def courses():
    choices = st.lists(st.booleans(), min_size=BATCHES, max_size=BATCHES)
    return st.builds(Course, choices, choices, choices, st.sampled_from([15_000, 1 << 20]))


def apart(events, number):
    """The history with keys and offsets that no other has."""
    return [
        dataclasses.replace(event, version=dataclasses.replace(
            event.version, key=event.version.key + KEYS_A_HISTORY * number,
            member=event.version.member + KEYS_A_HISTORY * number,
            offset=event.version.offset + EVENTS_A_HISTORY * number, event_id=f"{number}-{event.version.event_id}"))
        for event in events
    ]  # fmt: skip


def expected(events, course):
    """Rows by board, and the (board, offset) that wait. A board whose newest version waits has no row."""
    members, waiting = {}, {}
    shown = {}  # by board and offset: the version, and its author when it was sent first

    def resolve():
        for version in list(waiting.values()):
            send(version)

    def send(version):
        held = members.get(version.member)
        chosen = author(version, [held]) if held else None
        if version.deleted or chosen:
            shown.setdefault((version.key, version.offset), (version, chosen))
            waiting.pop(version.offset, None)
        else:
            waiting[version.offset] = version

    for batch in range(BATCHES):
        valid = [event.version for event in events if event.batch == batch and not event.is_broken]
        for version in valid:
            if version.topic == "member":
                known = members.get(version.key)
                members[version.key] = version if known is None else max(version, known, key=lambda v: v.version)
        for version in valid:
            if version.topic == "board":
                send(version)
        if course.resolves[batch]:
            resolve()
    resolve()
    newest = {}
    for version, chosen in shown.values():
        if version.key not in newest or version.version > newest[version.key][0].version:
            newest[version.key] = (version, chosen)
    pending = {
        (version.key, version.offset)
        for version in waiting.values()
        if version.key not in newest or version.version > newest[version.key][0].version
    }
    hidden = {key for key, _ in pending}
    view = {
        key: f"{chosen.name}/{version.name}"
        for key, (version, chosen) in newest.items()
        if not version.deleted and key not in hidden
    }
    return view, pending


def encode(event):
    """The record's value."""
    version = event.version
    times = {"modifiedAt": rfc3339(version.at), "createdAt": rfc3339(version.created)}
    if event.is_broken:
        return b"{nonsense"
    if version.deleted:
        return None
    if version.topic == "member":
        return member(version.key, nickname=version.name, **times)
    return board(version.key, version.member, title=version.name, **times)


def accepted(event):
    """The time that a deletion carries in its header."""
    return rfc3339(event.version.at) if event.version.deleted else None


def told(events, course):
    """Return the steps of a history as text, to explain a wrong result."""
    lines = [
        f"batch {event.batch}: {v.topic} {v.key} at {v.at:%H} offset {v.offset} {v.name}"
        f"{f' of member {v.member}' if v.topic == 'board' else ''}{' deleted' * v.deleted}{' broken' * event.is_broken}"
        for event in events for v in [event.version]
    ]  # fmt: skip
    return "\n".join(["", *lines, str(course), str(expected(events, course))])


class AnyPosition:
    """A position of the join for batches that come from no topic."""

    def set_progress(self, ends):
        pass


class Measured:
    """Reads pages as the given reader does, none larger than asked for."""

    def __init__(self, details, max_bytes):
        self._details = details
        self._max_bytes = max_bytes

    def read(self, records):
        size = sum(len(value.as_py() or b"") for value in records["value"])
        assert size <= self._max_bytes or records.num_rows == 1
        return self._details.read(records)


class DrawnKeys:
    """The keys of drawn records, which are not in the topic."""

    def __init__(self, definition, drawn):
        self._keys = JoinKeys(None, definition)
        self._drawn = drawn

    def of(self, range_):
        held = [record for record in self._drawn() if range_.holds(record.partition, record.offset)]
        return self._keys.named_by([messages_of(held)])


class Driver:
    """The parts of one driver after the other, over the same servers."""

    def __init__(self, spark, settings, delivery=AT_LEAST_ONCE):
        self._definition = settings.pipeline
        self._output = self._definition.output.name
        self._spark = spark
        self._settings = dataclasses.replace(settings, stream=dataclasses.replace(settings.stream, delivery=delivery))
        self._folder = tempfile.TemporaryDirectory()  # drivers continue with the segments of those before
        self._state_dir = Path(self._folder.name)
        self._log = TopicLog(settings.kafka.bootstrap_servers)
        self._offset_reader = self._log.offsets
        self.max_bytes = 1 << 20
        self._stop = threading.Event()
        self._batch_id, self._files = itertools.count(), itertools.count()
        self._parts = contextlib.ExitStack()

    def start(self, max_bytes=None):
        """A new driver, which knows nothing; the one before is gone."""
        self._parts.close()
        self.max_bytes = max_bytes or self.max_bytes
        settings, offset_reader = bounded(self._settings, self.max_bytes), self._offset_reader
        servers, state = settings.kafka.connection, DriverState()
        lease = DriverLease(settings.database, "test")
        lease.take()
        self.store = PendingStore(settings.database, lease)
        context = driver_context(settings, lease=lease, store=self.store, state=state, stop=self._stop)
        keep = partial(keep_rejects, context)
        tail = TopicTail(servers, self._definition.table.name)
        members = TableState(self._state_dir, offset_reader, tail, self._definition, keep)
        self._parts.callback(members.close)
        members.load()
        self._delivery = self._delivered(servers)
        self._parts.callback(self._delivery.close)
        self._join = StreamTableJoin(
            context, self._definition, self._spark.sparkContext, members, self._keys(), self._splits, self._delivery
        )
        if self._delivery.is_exactly_once:
            start = {0: self._delivery.committed.offsets.get(0, 0)}
            self._join.settle_pages(self._delivery.committed, start)
        output = self._output
        topic_id = offset_reader.topic_id(output)
        start = OffsetLedger(settings.database).open("serve", output, topic_id, offset_reader.earliest(output), lease)
        self._serving = LiveTableSink(settings.database, "serve", output, topic_id, lease)
        self._serving.begin(start)
        self._serve = Serve(context, self._definition, self._serving)
        self._serve._details = Measured(self._serve._details, self.max_bytes)
        self._parts.callback(self._serve.close)

    def draw(self, records):
        """Let the stream have these records."""
        self._drawn = records
        self._records = raw(records)

    def join(self, records):
        self.draw(records)
        range_ = range_of((record.partition, record.offset) for record in records)
        if self._delivery.is_exactly_once:  # it takes no range that does not follow the one before
            taken = self._delivery.committed.offsets
            range_ = OffsetRange({p: min(at, taken.get(p, at)) for p, at in range_.start.items()}, range_.end)
        self._join.process(range_, next(self._batch_id), AnyPosition())

    def resolve(self):
        self._join.resolve_pending(self._join.resolve)
        while not self._join._pending.is_done:
            self._join.resolve_pending(self._join.resolve)

    def serve(self):
        """All that is in the topic by now."""
        self._delivery.settle()
        self._log.wait_for_markers(self._output)
        start, ends = self._serving.committed_offsets, self._offset_reader.ends(self._output)
        if start != ends:
            self._serve.process(OffsetRange(start, ends), next(self._batch_id))
            wait_until(lambda: self._is_served(ends), 60, "the batch is written")

    def _delivered(self, servers):
        if self._settings.stream.delivery == AT_LEAST_ONCE:
            return AtLeastOnce(servers, self._definition)
        made = ExactlyOnce(servers, self._definition)
        made.open([0], self._offset_reader.topic_id(self._definition.stream.name), "timeline", {})
        return made

    def _splits(self, range_):
        """A file with the records of the range, which no topic has."""
        path = self._state_dir / f"{next(self._files)}.parquet"
        pq.write_table(part_of(self._records, range_), path)
        return [FileSplit(self._definition.stream.name, str(path))]

    def _keys(self):
        return DrawnKeys(self._definition, lambda: self._drawn)

    def close(self):
        self._parts.close()
        self._folder.cleanup()

    def _is_served(self, ends):
        self._serve.check()
        return self._serving.committed_offsets == ends


@pytest.fixture(scope="module", params=[AT_LEAST_ONCE, EXACTLY_ONCE])
def delivery(request):
    return request.param


@pytest.fixture(scope="module")
def pipeline(kafka, postgres, tmp_path_factory, delivery):
    settings = with_topics(kafka, postgres, "stream_property", tmp_path_factory.mktemp("stream-property"))
    refuse_unfenced(settings)
    return settings


@pytest.fixture(scope="module")
def driver(spark, pipeline, delivery):
    made = Driver(spark, pipeline, delivery)
    made.start()
    yield made
    made.close()


def sources(settings):
    """The offset in the stream of each record in the output."""
    connection, definition = settings.kafka.connection, settings.pipeline
    ends = OffsetReader(connection).ends(definition.output.name)
    name = definition.stream.source_header
    with contextlib.closing(TopicTail(connection, definition.output.name)) as tail:
        tail.begin(dict.fromkeys(ends, 0))
        return [int(dict(each.headers())[name].rpartition(b"/")[2]) for each in tail.read_to(ends)]


# No shrinking: an example takes seconds, and a history that fails is small and told by itself.
@examples(1, 10, phases=(Phase.reuse, Phase.generate))
@given(drawn=st.lists(histories(), min_size=20, max_size=40), course=courses())
def test_view_and_pending_are_what_the_rules_say(pipeline, driver, delivery, drawn, course):
    of_each = {number: apart(events, number) for number, events in zip(_numbers, drawn, strict=False)}
    log = list(itertools.chain.from_iterable(of_each.values()))
    driver.start(course.max_bytes)
    for batch in range(BATCHES):
        due = [event for event in log if event.batch == batch]
        members = [event for event in due if event.version.topic == "member"]
        for accepted_at, run in itertools.groupby(members, accepted):  # what is deleted has no other time
            produce(pipeline, [("member", event.version.key, encode(event)) for event in run], accepted_at)
        records = [
            RawRecord("board", 0, v.offset, str(v.key), value if isinstance(value, bytes) else encoded(value),
                      v.event_id, rfc3339(v.at))
            for event in due if (v := event.version).topic == "board" for value in [encode(event)]
        ]  # fmt: skip
        if records:
            driver.join(records)
        if course.restarts[batch]:
            driver.start()
            if records:
                driver.join(records)
        if course.resolves[batch]:
            driver.resolve()
        if course.serves[batch]:
            driver.serve()
    driver.resolve()
    driver.serve()
    driver.store.forget_superseded()

    if delivery == EXACTLY_ONCE:
        copies = {at: count for at, count in Counter(sources(pipeline)).items() if count > 1}
        assert not copies, f"sent more than once: {copies}"
    view = dict(rows(pipeline, "SELECT board_id, nickname || '/' || title FROM board_detail"))
    pending = set(rows(pipeline, 'SELECT board_id, "offset" FROM pending_record'))
    rejects = {row[0] for row in rows(pipeline, """SELECT "offset" FROM reject WHERE topic = 'board'""")}
    for number, events in of_each.items():
        keys = range(KEYS_A_HISTORY * number, KEYS_A_HISTORY * (number + 1))
        found = ({k: text for k, text in view.items() if k in keys}, {p for p in pending if p[0] in keys})
        assert found == expected(events, course), told(events, course)
        broken = {e.version.offset for e in events if e.is_broken and e.version.topic == "board"}
        offsets = range(EVENTS_A_HISTORY * number, EVENTS_A_HISTORY * (number + 1))
        assert {offset for offset in rejects if offset in offsets} == broken
