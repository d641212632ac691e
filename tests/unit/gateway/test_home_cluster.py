"""The own cluster: another one that answers is noticed, and takes no event that was accepted."""

import asyncio
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts.errors import ConfigurationError
from include.gateway import home_cluster
from include.gateway.fallback.store import SqliteFallbackStore
from include.gateway.home_cluster import CLUSTER_FILE, ClusterFile
from include.gateway.intake import Kept
from include.gateway.ports import StoreInUse
from include.gateway.replay import move_to_cluster
from include.gateway.supervision import FOREIGN_CLUSTER
from tests.fakes.events import record
from tests.fakes.gateway import OWN_CLUSTER, FixedClock
from tests.fakes.harness import FakeGateway

OTHER = "other"


@dataclass
class Memory:
    """A file that can be written, or not."""

    cluster_id: str | None = None
    is_writable: bool = True

    def read(self):
        return self.cluster_id

    def write(self, cluster_id):
        if not self.is_writable:
            raise OSError(28, "No space left on device")
        self.cluster_id = cluster_id


async def started(memory=None):
    gateway = FakeGateway().start()
    gateway.services.home.remember_in(memory or Memory())
    gateway.producer.start(gateway.services.on_client_failure, gateway.services.home.changed)
    return gateway


async def drained(gateway):
    """As time goes by: the drain tends until nothing waits."""
    times_s = itertools.count(1e9, 1000.0)  # a probe is always due
    gateway.services.drain._monotonic = lambda: next(times_s)
    for _ in range(50):
        await gateway.services.drain.tend()
        if not gateway.store.rows and not gateway.services.circuit.is_open:
            return
    raise AssertionError(f"{len(gateway.store.rows)} wait, {gateway.services.degraded()}")


def test_first_contact_is_remembered_and_another_cluster_is_refused_with_both_ids_and_the_remedy():
    async def scenario():
        memory = Memory()
        gateway = await started(memory)
        assert await gateway.services.home.confirm()
        gateway.producer.move_to(OTHER)
        assert not await gateway.services.home.confirm()
        return memory, gateway

    memory, gateway = asyncio.run(scenario())
    assert memory.cluster_id == OWN_CLUSTER
    assert gateway.services.circuit.is_open
    [problem, *_] = gateway.services.degraded()
    assert OWN_CLUSTER in problem
    assert f"--move-to-cluster {OTHER}" in problem
    assert b'gateway_foreign_cluster{answering="other",own="own"} 1.0' in gateway.services.metrics.page()


def test_id_that_cannot_be_written_is_written_later():
    async def scenario():
        memory = Memory(is_writable=False)
        gateway = await started(memory)
        assert await gateway.services.home.confirm()
        assert memory.cluster_id is None
        memory.is_writable = True
        await gateway.services.home.confirm()
        return memory.cluster_id

    assert asyncio.run(scenario()) == OWN_CLUSTER


async def crossed(gateway, cluster, events):
    """Keep the events while the connection changes: sent to that cluster, and the client warns before it answers."""
    gateway.producer.move_to(cluster, is_told=False)
    keeping = asyncio.create_task(gateway.services.intake.keep_all([record(*event) for event in events]))
    await asyncio.sleep(0)
    gateway.services.home.changed()
    return await keeping


def test_acknowledgement_after_the_clients_warning_does_not_count():
    async def scenario():
        gateway = await started(Memory(OWN_CLUSTER))
        outcomes = await crossed(gateway, OTHER, [(n, f"e-{n}") for n in range(3)])
        assert [one.event_id for one in gateway.producer.elsewhere] == ["e-0", "e-1", "e-2"]
        assert {(row.error, row.may_be_in_kafka) for row in gateway.store.rows} == {(FOREIGN_CLUSTER, True)}
        outcomes.append(await gateway.services.intake.keep(record(3, "e-3")))
        assert len(gateway.producer.elsewhere) == 3
        gateway.producer.move_to(OWN_CLUSTER)
        await drained(gateway)
        return gateway, outcomes

    gateway, outcomes = asyncio.run(scenario())
    assert gateway.producer.event_ids() == [f"e-{n}" for n in range(4)]
    assert outcomes == [Kept(f"e-{n}", "fallback") for n in range(4)]


def test_cluster_that_the_client_does_not_warn_of_is_found_by_the_regular_comparison(monkeypatch):
    monkeypatch.setattr(home_cluster, "_INTERVAL_S", 0.001)

    async def scenario():
        gateway = await started(Memory(OWN_CLUSTER))
        gateway.producer.move_to(OTHER, is_told=False)
        comparing = asyncio.create_task(gateway.services.home.run())
        async with asyncio.timeout(10):
            while not gateway.services.circuit.is_open:
                await asyncio.sleep(0.001)
        comparing.cancel()
        outcome = await gateway.services.intake.keep(record(1, "e-1"))
        gateway.producer.move_to(OWN_CLUSTER, is_told=False)
        await drained(gateway)
        return gateway, outcome

    gateway, outcome = asyncio.run(scenario())
    assert outcome == Kept("e-1", "fallback")
    assert gateway.producer.event_ids() == ["e-1"]


def test_outage_and_restart_of_the_own_cluster_make_nothing_suspicious():
    async def scenario():
        gateway = await started(Memory(OWN_CLUSTER))
        home, producer = gateway.services.home, gateway.producer
        producer.is_up = False
        assert not await home.confirm()
        assert not gateway.services.circuit.is_open
        assert producer.restart(0)
        producer.is_up = True
        outcome = await gateway.services.intake.keep(record(1, "e-1"))
        return gateway, home, outcome

    gateway, home, outcome = asyncio.run(scenario())
    assert home.is_trusted
    assert outcome == Kept("e-1", "kafka")
    assert not gateway.services.circuit.is_open
    assert not gateway.store.rows


@pytest.mark.parametrize("is_told", [True, False])
def test_drain_sends_nothing_to_another_cluster(is_told):
    async def scenario():
        gateway = await started(Memory(OWN_CLUSTER))
        for n in range(5):
            await gateway.store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False)
        gateway.producer.move_to(OTHER, is_told)
        await gateway.services.drain.tend()
        assert len(gateway.store.rows) == 5
        assert not gateway.producer.elsewhere
        gateway.producer.move_to(OWN_CLUSTER, is_told)
        await drained(gateway)
        return gateway.producer.event_ids()

    assert asyncio.run(scenario()) == [f"e-{n}" for n in range(5)]


def test_drain_forgets_nothing_of_a_batch_during_which_the_client_warned():
    async def scenario():
        gateway = await started(Memory(OWN_CLUSTER))
        for n in range(5):
            await gateway.store.put(record(n, f"e-{n}"), "test", may_be_in_kafka=False)

        def moves(_record):
            gateway.producer.move_to(OTHER)

        gateway.producer.refuses = moves
        await gateway.services.drain.tend()
        gateway.producer.refuses = lambda _record: None
        assert gateway.producer.elsewhere
        assert len(gateway.store.rows) == 5
        gateway.producer.move_to(OWN_CLUSTER)
        await drained(gateway)
        return gateway.producer.event_ids()

    assert asyncio.run(scenario()) == [f"e-{n}" for n in range(5)]


KEYS = st.lists(st.integers(1, 3), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), KEYS),
        st.tuples(st.just("cross"), st.sampled_from([OWN_CLUSTER, OTHER]), KEYS),
        st.tuples(st.just("move"), st.sampled_from([OWN_CLUSTER, OTHER])),
        st.tuples(st.sampled_from(["compare", "drain", "down", "up", "restart"])),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_whatever_cluster_answers_every_event_reaches_the_own_one_and_the_newest_of_a_key_is_last(steps):
    """The client warns of a move before a record is acknowledged over the new connection."""

    async def scenario():
        gateway = await started(Memory(OWN_CLUSTER))
        home, producer = gateway.services.home, gateway.producer
        accepted: list[tuple[int, str]] = []

        def events_of(keys):
            events = [(key, f"e-{len(accepted) + n}") for n, key in enumerate(keys)]
            accepted.extend(events)
            return events

        for step in steps:
            match step:
                case ("post", keys):
                    await gateway.services.intake.keep_all([record(*event) for event in events_of(keys)])
                case ("cross", cluster, keys):
                    await crossed(gateway, cluster, events_of(keys))
                case ("move", cluster):
                    producer.move_to(cluster)
                case ("compare",):
                    await home.confirm()
                case ("drain",):
                    await gateway.services.drain.tend()
                case ("down",):
                    producer.is_up = False
                case ("up",):
                    producer.is_up = True
                case ("restart",):
                    producer.restart(producer.generation)
        producer.is_up = True
        producer.move_to(OWN_CLUSTER)
        await drained(gateway)
        return accepted, producer.event_ids()

    accepted, sent = asyncio.run(scenario())
    assert {event_id for _, event_id in accepted} - set(sent) == set()
    last = {}
    for key, event_id in accepted:
        last[key] = event_id
    keys = {event_id: key for key, event_id in accepted}
    in_topic = {}
    for event_id in sent:
        in_topic[keys[event_id]] = event_id
    assert in_topic == last


def test_file_of_the_id_is_read_and_written(tmp_path):
    file = ClusterFile(tmp_path)
    assert file.read() is None
    file.write("Oz70VVgeRuitJZGnKqoBEQ")
    assert ClusterFile(tmp_path).read() == "Oz70VVgeRuitJZGnKqoBEQ"
    assert [one.name for one in tmp_path.iterdir()] == [CLUSTER_FILE]


def test_move_is_remembered_and_tells_of_the_former_cluster(tmp_path):
    ClusterFile(tmp_path).write("former")
    assert asyncio.run(move_to_cluster(tmp_path, "new")) == "former"
    assert ClusterFile(tmp_path).read() == "new"


def test_move_repairs_a_file_without_an_id(tmp_path):
    (tmp_path / CLUSTER_FILE).write_bytes(b"")
    assert asyncio.run(move_to_cluster(tmp_path, "new")) is None
    assert ClusterFile(tmp_path).read() == "new"


def test_move_refuses_while_a_gateway_holds_the_store(tmp_path):
    async def scenario():
        store = SqliteFallbackStore(tmp_path, FixedClock())
        store.open()
        try:
            await move_to_cluster(tmp_path, "new")
        finally:
            await store.close()

    with pytest.raises(StoreInUse):
        asyncio.run(scenario())
    assert ClusterFile(tmp_path).read() is None


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe"])
def test_file_without_an_id_is_refused_with_the_remedy(tmp_path, content):
    (tmp_path / CLUSTER_FILE).write_bytes(content)
    with pytest.raises(ConfigurationError, match="--move-to-cluster"):
        ClusterFile(tmp_path).read()
