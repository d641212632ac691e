"""A gateway's clock that is set, over a real broker: no event is lost, none is held up, and it is told."""

import asyncio
import contextlib
import datetime as dt
import itertools

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from include.contracts.clock import SystemClock, epoch_ms
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from include.contracts.pipelines import BOARD
from include.gateway.broker_clock import MAX_SKEW_S, BrokerClock
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.intake import Intake, Kept
from include.gateway.kafka_producer import KafkaProducer
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from tests.fakes.events import board
from tests.support.broker import CREATE_TIME, PARTITIONS, Broker, set_timestamps
from tests.support.sending import sending
from tests.support.stores import store_in

DAY_S, YEAR_S = 86_400.0, 365 * 86_400.0
JUMPS_S = [jump for size in (1.0, DAY_S, YEAR_S) for jump in (size, -size)]
TOPICS = ("board", "member", "board-detail")
DEADLINE_S = 20.0
COUNT = 20  # of the events between two jumps

board_ids = itertools.count(1)


class SetClock:
    """The machine's clock, set by so many seconds."""

    def __init__(self):
        self.wrong_s = 0.0

    def now(self):
        return SystemClock().now() + dt.timedelta(seconds=self.wrong_s)


class Gateway:
    """Intake and drain over a real producer and store, with a clock that can be set."""

    def __init__(self, broker, folder):
        self.machine = SetClock()
        self.clock = BrokerClock(self.machine)
        self.producer = KafkaProducer(KafkaConnection(broker.bootstrap_servers), DEADLINE_S)
        self.store, self.circuit, counters = store_in(folder), Circuit(5), Counters()
        supervisor = Supervisor(self.producer, self.circuit, counters, lambda kind: None)
        home = HomeCluster(self.producer, self.circuit, supervisor)
        parts = (self.producer, self.store, self.circuit, supervisor, self.clock, counters, home)
        self.intake, self.drain = Intake(*parts), Drain(*parts)

    @contextlib.asynccontextmanager
    async def running(self):
        self.store.open()
        self.producer.start(lambda failure: None, on_append=self.clock.appended)
        try:
            async with asyncio.timeout(120):
                assert await self.producer.cluster_id(10)
                yield self
        finally:
            await self.producer.close(1)
            await self.store.close()

    async def post(self, count=COUNT):
        """So many events, one after the other; their ids."""
        outcomes = []
        for _ in range(count):
            number = next(board_ids)
            outcomes.append(await self.intake.accept(BOARD, board(number), f"clock-{number}"))
            await asyncio.sleep(0.01)  # longer than the pause between two comparisons, over all of them
        assert {type(outcome) for outcome in outcomes} == {Kept}
        return outcomes


def run(broker, folder, scenario):
    async def main():
        async with Gateway(broker, folder).running() as gateway:
            return await scenario(gateway)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def broker(kafka):
    broker = Broker(kafka)
    broker.make_topics()
    return broker


def accepted_at(broker, outcomes):
    """The time of acceptance that each of the events carries in the topic."""
    headers = [dict(message.headers()) for message in broker.messages("board")]
    found = {one[EVENT_ID].decode(): dt.datetime.fromisoformat(one[ACCEPTED_AT].decode()) for one in headers}
    return [found[outcome.event_id] for outcome in outcomes]


@pytest.mark.parametrize("jump_s", JUMPS_S)
@pytest.mark.parametrize("when", ["at the start", "in mid-run"])
def test_a_clock_that_is_set_costs_no_event_holds_up_none_and_is_told(broker, tmp_path, when, jump_s):
    async def scenario(gateway):
        kept, began = [], SystemClock().now()
        if when == "in mid-run":
            kept += await gateway.post()
        gateway.machine.wrong_s = jump_s
        first = await gateway.post(1)
        kept += await gateway.post()
        told = gateway.clock.ahead_s, gateway.clock.problem
        gateway.machine.wrong_s = 0.0
        kept += await gateway.post()
        return first, kept, told, (gateway.clock.ahead_s, gateway.clock.problem), gateway.store.backlog(), began

    first, kept, told, afterwards, backlog, began = run(broker, tmp_path, scenario)
    assert {outcome.where for outcome in (*first, *kept)} == {"kafka"}
    assert (backlog.waiting, backlog.refused) == (0, 0)
    assert told[0] == pytest.approx(jump_s, abs=1)
    assert (told[1] is not None) == (abs(jump_s) > MAX_SKEW_S)
    assert afterwards == (pytest.approx(0, abs=1), None)
    margin = dt.timedelta(seconds=MAX_SKEW_S + 1)
    for at in accepted_at(broker, kept):  # all but the first event of a clock that nobody has compared yet
        assert began - margin <= at <= SystemClock().now() + margin


@pytest.mark.parametrize("jump_s", JUMPS_S)
@pytest.mark.parametrize("kind", ["LogAppendTime", CREATE_TIME])
def test_events_of_a_wrong_moment_that_waited_hold_up_no_other(broker, tmp_path, jump_s, kind):
    """Also in a topic that somebody changed to the producers' times: its broker refuses those of the future."""
    set_timestamps(broker.bootstrap_servers, kind, "board")

    async def scenario(gateway):
        gateway.machine.wrong_s = jump_s
        gateway.circuit.open("the broker does not answer")
        waited = await gateway.post(8)
        gateway.machine.wrong_s = 0.0
        while gateway.circuit.is_open:
            await gateway.drain.tend()
            await asyncio.sleep(0.05)
        live = await gateway.post()
        while gateway.store.backlog().waiting:
            await gateway.drain.tend()
            await asyncio.sleep(0.05)
        return waited, live

    waited, live = run(broker, tmp_path, scenario)
    assert {outcome.where for outcome in waited} == {"fallback"}
    assert {outcome.where for outcome in live} == {"kafka"}
    assert len(accepted_at(broker, [*waited, *live])) == 8 + COUNT
    set_timestamps(broker.bootstrap_servers, "LogAppendTime", "board")


@pytest.mark.parametrize("topic", TOPICS)
def test_the_clock_of_no_producer_decides_whether_kafka_takes_a_record_and_until_when_it_is_there(broker, topic):
    """The join's producers send their machine's time with each record of the output topic."""
    now = SystemClock().now()
    with sending(broker.bootstrap_servers) as sender:
        for jump_s in JUMPS_S:
            sender.send(topic, b"{}", f"clock {jump_s}", timestamp=epoch_ms(now + dt.timedelta(seconds=jump_s)))
    found = [one for one in broker.messages(topic) if one.key().startswith(b"clock ")]
    assert len(found) == len(JUMPS_S)
    for message in found:
        kind, at_ms = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert epoch_ms(now) <= at_ms <= epoch_ms(SystemClock().now())


def test_a_record_is_found_from_the_time_on_at_which_it_reached_kafka_whatever_its_producer_says(broker):
    """So a replayed record, or one of a producer whose clock is behind, is behind the start of its day's range."""
    offsets, began = OffsetReader(KafkaConnection(broker.bootstrap_servers)), SystemClock().now()
    before = offsets.ends("board")
    with sending(broker.bootstrap_servers) as sender:
        for partition, jump_s in itertools.product(range(PARTITIONS), JUMPS_S):
            at_ms = epoch_ms(began + dt.timedelta(seconds=jump_s))
            sender.send("board", b"{}", b"1", partition, timestamp=at_ms)
    assert offsets.at("board", began) == before
    assert offsets.at("board", SystemClock().now() + dt.timedelta(seconds=1)) == offsets.ends("board")
    newest = offsets.newest_times_ms("board")
    assert {*newest} == {*range(PARTITIONS)}
    assert all(epoch_ms(began) <= at_ms <= epoch_ms(SystemClock().now()) for at_ms in newest.values())
