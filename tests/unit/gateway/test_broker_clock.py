"""The gateway's clock beside those of the brokers, while the machine's clock is set in any way."""

import asyncio
import datetime as dt
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.clock import epoch_ms, rfc3339
from include.contracts.headers import ACCEPTED_AT
from include.contracts.pipelines import BOARD
from include.gateway.broker_clock import MAX_SKEW_S, BrokerClock
from include.gateway.intake import Intake, Rejected
from tests.fakes.events import board
from tests.fakes.gateway import FixedClock
from tests.fakes.harness import FakeGateway, over_http

TRUE = dt.datetime(2026, 11, 20, 9, 30, tzinfo=dt.UTC)
DAY_S, YEAR_S = 86_400.0, 365 * 86_400.0
MEMBER = {"nickname": "mina", "city": None, "phone": None, "email": None}
JUMPS_S = [jump for size in (1.0, DAY_S, YEAR_S) for jump in (size, -size)]


class World:
    """A machine whose clock may be set, and brokers whose clocks are right unless they are set too."""

    def __init__(self, wrong_s=0.0):
        self.elapsed_s = 0.0
        self.machine = FixedClock(TRUE)
        self.machine.advance(wrong_s)
        self.broker_wrong_s = {0: 0.0, 1: 0.0}
        self.wrong_elapsed_s = 0.0
        self.clock = BrokerClock(self.machine, lambda: round((self.elapsed_s + self.wrong_elapsed_s) * 1000))

    @property
    def true(self):
        return TRUE + dt.timedelta(seconds=self.elapsed_s)

    @property
    def error_s(self):
        """Seconds by which the time that records carry differs from the right one."""
        return (self.clock.now() - self.true).total_seconds()

    def wait(self, seconds):
        self.elapsed_s += seconds
        self.machine.advance(seconds)

    def send(self, partition=0, seconds=0.002, step_s=0.0):
        """A record is sent, appended halfway, and acknowledged. The machine's clock is set in between."""
        self.wait(seconds / 2)
        appended = self.true + dt.timedelta(seconds=self.broker_wrong_s[partition])
        self.machine.advance(step_s)
        self.wait(seconds / 2)
        self.clock.appended(("board", partition), math.ceil(seconds * 1000), epoch_ms(appended))


def test_a_right_clock_is_left_alone():
    world = World()
    assert (world.clock.ahead_s, world.clock.problem, world.error_s) == (None, None, 0)
    world.send()
    assert (world.clock.ahead_s, world.clock.problem, world.error_s) == (0, None, 0)


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_clock_that_is_wrong_at_the_start_is_known_by_the_first_acknowledgement(jump_s):
    world = World(jump_s)
    world.send()
    assert world.clock.ahead_s == pytest.approx(jump_s, abs=0.01)
    is_wrong = abs(jump_s) > MAX_SKEW_S
    assert world.error_s == pytest.approx(0 if is_wrong else jump_s, abs=0.01)
    assert (world.clock.problem is not None) == is_wrong


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_step_changes_nothing_once_a_broker_has_said_what_time_it_is(jump_s):
    world = World()
    world.send()
    world.machine.advance(jump_s)
    assert abs(world.error_s) <= MAX_SKEW_S  # at once, before the next acknowledgement
    assert world.clock.ahead_s == pytest.approx(jump_s, abs=0.01)
    world.machine.advance(-jump_s)
    assert (world.error_s, world.clock.problem) == (pytest.approx(0, abs=0.01), None)


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_without_a_broker_time_does_not_go_back_and_a_step_ahead_is_followed(jump_s):
    world = World()
    before = world.clock.now()
    world.machine.advance(jump_s)
    assert world.clock.now() >= before
    assert world.error_s == max(0, jump_s)
    assert world.clock.problem is None  # nobody knows yet
    world.send()
    assert abs(world.error_s) <= MAX_SKEW_S


def test_an_acknowledgement_that_comes_late_is_no_wrong_clock():
    world = World()
    world.send(seconds=40.0)
    assert (world.clock.ahead_s, world.error_s) == (0, 0)


def test_one_broker_whose_clock_is_wrong_changes_nothing_while_another_agrees_and_is_told():
    world = World()
    world.broker_wrong_s[1] = -600.0
    world.send(0)
    for partition in (1, 1, 0, 1):
        world.send(partition)
        assert abs(world.error_s) <= MAX_SKEW_S
    assert world.clock.ahead_s == pytest.approx(600, abs=0.01)
    assert "600 s ahead of that of the broker that leads board/1, and agrees with others" in world.clock.problem
    world.broker_wrong_s[1] = 0.0
    world.send(1)
    assert (world.clock.ahead_s, world.clock.problem) == (0, None)


def outcome(world, number):
    """The status that a client gets for an event with a version of a second ago; it is appended if it is accepted."""
    intake = Intake(None, None, None, None, world.clock, None, None)
    text = rfc3339(world.true - dt.timedelta(seconds=1))
    admitted = intake.admit(BOARD, board(number, createdAt=text, modifiedAt=text), f"e-{number}")
    if isinstance(admitted, Rejected):
        return admitted.status
    for partition in world.broker_wrong_s:
        world.send(partition)
    return 201


def test_a_gateway_that_followed_wrong_brokers_agrees_with_right_ones_again_though_it_refuses_what_is_right():
    world = World()
    world.send()
    world.broker_wrong_s = dict.fromkeys(world.broker_wrong_s, -600.0)
    assert outcome(world, 1) == 201  # and now the gateway goes by their time
    assert outcome(world, 2) == 400
    world.broker_wrong_s = dict.fromkeys(world.broker_wrong_s, 0.0)
    world.wait(11)
    assert [outcome(world, number) for number in range(3, 6)] == [201] * 3
    assert (world.clock.ahead_s, world.clock.problem, world.error_s) == (0, None, 0)


def test_a_machine_whose_clocks_stood_still_accepts_what_is_right_soon_after_its_clock_is_set():
    world = World()
    world.send()
    world.wrong_elapsed_s -= 600.0  # suspended, and the monotonic clock did not go on
    world.wait(600)
    world.wait(11)
    assert [outcome(world, number) for number in range(3)] == [201] * 3
    assert world.error_s == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("newest_s", [None, -2 * 3600])
def test_a_gateway_that_starts_with_its_clock_behind_and_finds_quiet_topics_accepts_what_is_right(newest_s):
    world = World(-3600.0)
    if newest_s is not None:
        world.clock.not_before({("board", 0): epoch_ms(TRUE + dt.timedelta(seconds=newest_s))})
    assert [outcome(world, number) for number in range(3)] == [201] * 3
    assert world.clock.ahead_s == pytest.approx(-3600, abs=0.01)
    assert world.error_s == pytest.approx(0, abs=0.01)


def test_a_version_that_cannot_be_right_is_refused_before_any_broker_answers():
    intake = Intake(None, None, None, None, World().clock, None, None)
    admitted = intake.admit(BOARD, board(1, modifiedAt="2200-01-01T00:00:00Z"), "e-1")
    assert "more than 290 s later than the gateway's clock, 2026-11-20T09:30:00.000Z" in admitted.details[0].problem


def test_a_clock_that_is_set_back_and_right_again_before_a_broker_answers_is_followed():
    world = World()
    world.clock.now()
    world.machine.advance(-3600)
    assert world.error_s == pytest.approx(0)
    world.machine.advance(3600)
    assert world.error_s == pytest.approx(0)


def test_the_newest_records_say_that_a_clock_is_behind_before_the_first_acknowledgement():
    world = World(-YEAR_S)
    newest = TRUE - dt.timedelta(seconds=30)
    world.clock.not_before({("board", 0): epoch_ms(newest), ("member", 0): epoch_ms(TRUE) - 2 * round(YEAR_S * 1000)})
    assert world.error_s == pytest.approx(-30, abs=0.01)
    assert "behind the brokers'" in (world.clock.problem or "")
    world.send()
    assert world.error_s == pytest.approx(0, abs=0.01)


def test_the_newest_records_of_a_quiet_topic_say_nothing():
    world = World(DAY_S)
    world.clock.not_before({("board", 0): epoch_ms(TRUE)})
    assert world.clock.ahead_s is None


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.5, 2.0, 30.0, 7200.0])),
        st.tuples(st.just("step"), st.sampled_from([*JUMPS_S, 90.0, -90.0])),
        st.tuples(st.just("send"), st.sampled_from([0, 1])),
        st.tuples(st.just("slow"), st.sampled_from([11.0, 50.0])),
        st.tuples(st.just("set while sending"), st.sampled_from(JUMPS_S)),
    ),
    max_size=30,
)


@given(wrong_s=st.sampled_from([0.0, *JUMPS_S]), actions=ACTIONS)
def test_whatever_the_machine_does_what_records_carry_is_right_after_the_first_acknowledgement(wrong_s, actions):
    world, is_known, unnoticed_s, known_s = World(wrong_s), False, 0.0, 0.0
    for action, value in actions:
        if action == "wait":
            world.wait(value)
        elif action == "step":
            world.machine.advance(value)
            unnoticed_s += abs(value) if abs(value) <= 1 else 0.0  # smaller than a pause between two events
        elif action == "send":
            world.send(value)
            is_known, unnoticed_s, known_s = True, 0.0, world.elapsed_s
        elif action == "slow":
            world.send(seconds=value)
            is_known = is_known and world.elapsed_s < known_s + 60  # brokers that answer slowly say little
        else:
            unnoticed_s += abs(value) if abs(value) <= 1 else 0.0
            world.send(step_s=value)
        if is_known:
            assert abs(world.error_s) <= MAX_SKEW_S + unnoticed_s + 0.01


def test_a_wrong_clock_is_told_and_costs_no_event_its_place():
    async def scenario(gateway, client):
        gateway.producer.clock = FixedClock(gateway.clock.now())
        answers = []
        for jump_s in (0.0, *JUMPS_S):
            gateway.clock.advance(jump_s)
            answers += [await client.post("/topics/board/events", json=board(n)) for n in range(3)]
            ready, page = await client.get("/readyz"), gateway.services.metrics.page().decode()
            backlog = (await client.get("/fallback", headers={"Authorization": "Bearer admin-token"})).json()
            told = [each for each in ready.json()["degraded"] if "clock" in each]
            assert (ready.status_code, bool(told)) == (200, abs(jump_s) > MAX_SKEW_S)
            metric = next(line for line in page.splitlines() if line.startswith("gateway_clock_ahead_seconds "))
            # the test's clocks stand, and the monotonic one goes on
            assert float(metric.split()[1]) == pytest.approx(jump_s, abs=1)
            assert backlog["clockAheadS"] == pytest.approx(jump_s, abs=1)
            gateway.clock.advance(-jump_s)
        return answers

    gateway, answers = over_http(scenario)
    assert {(answer.status_code, answer.json()["keptIn"]) for answer in answers} == {(201, "kafka")}
    at = gateway.producer.clock.now()
    for record in gateway.producer.records:
        accepted = dt.datetime.fromisoformat(dict(record.headers)[ACCEPTED_AT].decode())
        assert abs((accepted - at).total_seconds()) <= MAX_SKEW_S


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_gateway_that_starts_with_a_wrong_clock_refuses_no_right_version(jump_s):
    """It may be behind by more than a version's tolerance, and nobody has told it the time yet: Kafka may be down."""

    async def scenario(gateway, client):
        true = FixedClock(gateway.clock.now())
        gateway.clock.advance(jump_s)
        gateway.system_of_record.ahead = dt.timedelta(seconds=-jump_s)
        value = board(modifiedAt=rfc3339(true.now()))
        answers = [await client.post("/topics/board/events", json=value), await client.post("/members", json=MEMBER)]
        gateway.producer.clock = true
        answers += [await client.post("/topics/board/events", json=value) for _ in range(2)]
        answers.append(await client.post("/members", json=MEMBER))
        too_late = board(modifiedAt=rfc3339(true.now() + BOARD.clock_tolerance))
        return answers, await client.post("/topics/board/events", json=too_late)

    _, (answers, refused) = over_http(scenario)
    assert [(answer.status_code, answer.json()["keptIn"]) for answer in answers] == [(201, "kafka")] * 5
    assert refused.status_code == 400


@pytest.mark.parametrize("ahead_s", [-DAY_S, -61, 1, DAY_S])
@pytest.mark.parametrize("jump_s", [0.0, *JUMPS_S])
def test_rows_alone_tell_the_gateway_the_time_whatever_clock_their_versions_are_from(ahead_s, jump_s):
    async def scenario(gateway, client):
        gateway.producer.clock = FixedClock(gateway.clock.now())
        gateway.clock.advance(jump_s)
        gateway.system_of_record.ahead = dt.timedelta(seconds=ahead_s - jump_s)
        first = await client.post("/members", json=MEMBER)
        return first, await client.post("/members", json=MEMBER), gateway.services.clock.ahead_s

    _, (first, second, known_s) = over_http(scenario)
    assert (first.status_code, second.status_code) == (201, 503 if ahead_s == DAY_S else 201)
    assert known_s == pytest.approx(jump_s, abs=1)


def test_a_gateway_that_never_heard_of_a_broker_has_no_such_metric():
    async def scenario(gateway, client):
        return (await client.get("/metrics")).text

    _, page = over_http(scenario)
    assert "# TYPE gateway_clock_ahead_seconds gauge" in page
    assert "\ngateway_clock_ahead_seconds " not in page


def test_time_of_acceptance_is_the_clocks():
    async def scenario():
        gateway = FakeGateway().start()
        return gateway, gateway.services.intake.admit(BOARD, board(), "e")

    gateway, record = asyncio.run(scenario())
    assert record.accepted_at_ms == epoch_ms(gateway.clock.now())
