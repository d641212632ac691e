"""The parts that faults happen to: a broker of two behind a proxy, and a gateway whose store is on a small disk."""

import contextlib
import datetime as dt
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from include.contracts.definition import SITE_NAME, Definition
from include.contracts.pipelines import PIPELINES
from include.gateway.auth import token_file
from include.gateway.auth.token_file import Entry, digest
from include.gateway.broker_clock import MAX_SKEW_S
from include.gateway.client import GatewayUnavailable
from include.integrity.days.gateways import NotMissing, give_up_store
from include.runtime.settings import Settings
from tests.faults.plan import OF_THE_BROKER, OF_THE_FILE, Fault, Plan, Span
from tests.servers import PostgresTestServer, wait_until
from tests.support.access import AUTHORIZER, Access
from tests.support.broker import Broker
from tests.support.database import database_environment, migrated
from tests.support.full_disk import GatewayOnDisk, SmallDisk, small_disk
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.proxy import Proxy
from tests.support.set_clock import SetClock
from tests.support.two_clusters import TwoClusters, two_clusters

OTHER_TOKEN = "other-token"  # of a second sender, whose keys are those of the first
_DISK_BYTES = 256 << 20  # only a fault fills it
_LOOK_S = 0.02
_RESTART_S = 0.2
_REPLAY_RATE = 10_000  # records/s: a replay lasts long enough to be cut short
_HEALTHY_S = 90.0
_DRAINED_S = 120.0
_REPLAYED = 2_000  # records of a replay that is seen before it is over
_FILLED_S = 60.0  # until a gateway that cannot send keeps an event in its store
_RECONCILED_S = 60.0
_TOLD_S = 30.0
_NEARLY_S = 0.5
_DATABASE = "gateway_faults"


@dataclass(frozen=True)
class Held:
    """Events that the gateway says it could not send: set aside, or lost to damage."""

    set_aside: int
    lost: int

    @property
    def total(self) -> int:
        """The sum of both."""
        return self.set_aside + self.lost


@dataclass
class Parts:
    """The real parts. A gateway that has ended is started again, as by a supervisor.

    The gateway speaks to the broker through the proxy, everybody else does not.
    """

    clusters: TwoClusters
    disk: SmallDisk
    gateway: GatewayOnDisk
    pipeline: Definition  # events are records of its stream
    clock: SetClock  # the gateway's
    executors: (
        ThreadPoolExecutor  # lives as long as the parts: the kernel ends a broker with the thread that started it
    )
    exits: list[int] = field(default_factory=list)  # exit codes of a gateway that nobody killed
    cuts: int = 0  # replays that were cut short
    damages: list[str] = field(default_factory=list)  # what was done to the store's file
    told: list[Span] = field(default_factory=list)  # spans of a wrong clock that the gateway told
    reconciled: int = 0  # runs of reconcile that ended well while answers were lost

    @property
    def broker(self) -> Broker:
        """The broker of the cluster that the gateway's events belong to."""
        return self.clusters.own

    @property
    def proxy(self) -> Proxy:
        """The proxy between the gateway and the brokers."""
        return self.clusters.proxy

    def suffer(self, faults: Plan) -> None:
        """Apply all faults of a round, and wait until healthy. Raises AssertionError if that fails.

        The store's file is damaged once events wait in it, however long that takes, and an outage lasts until then.
        Where a replay is to be cut, it also lasts until enough of them wait.
        """
        broker = [span for span in faults if span.fault in OF_THE_BROKER]
        disk = [span for span in faults if span.fault is Fault.DISK_FULL]
        clock = [span for span in faults if span.fault is Fault.CLOCK_SET]
        kills = [span for span in faults if span.fault in (Fault.GATEWAY_KILLED, *OF_THE_FILE)]
        cuts = [span for span in faults if span.fault is Fault.REPLAY_CUT]
        damages = len(self.damages) + sum(span.fault in OF_THE_FILE for span in kills)
        began, ended = time.monotonic(), threading.Event()
        gateway = self.executors.submit(self._tend_gateway, kills, cuts, began, ended)
        others: list[Future[None]] = [
            self.executors.submit(self._live_through, executor, began, damages, _REPLAYED if cuts else 0)
            for executor in (broker, disk, clock)
        ]
        try:
            for executor in others:
                executor.result()
        finally:
            ended.set()
            gateway.result()
        self.wait_until_healthy()
        if clock:
            wait_until(lambda: self._tells(0.0), _TOLD_S, "the gateway's clock agrees with the broker's again")

    def renew_store(self) -> None:
        """Give the gateway an empty store, while nothing waits in it: one that held more has room in its own file."""
        self.wait_until_drained()
        former = self._fallback()["storeId"]
        self.gateway.terminate()
        assert self.disk.run(["rm", "-rf", self.gateway.environment["GATEWAY_FALLBACK_DIR"]]).wait() == 0
        self.gateway.start()
        with contextlib.suppress(NotMissing):  # no certificate has asked for it
            give_up_store(self.settings, former, "the proof has removed it, and nothing waited in it", "faults")

    @contextlib.contextmanager
    def long_deadline(self) -> Iterator[None]:
        """The gateway, started again, waits for a broker that a busy machine holds up; it is no fault."""
        usual = self.gateway.environment
        self._restart(usual | LONG_DEADLINE)
        try:
            yield
        finally:
            self._restart(usual)

    def _restart(self, environment: dict[str, str]) -> None:
        self.gateway.terminate()
        self.gateway.environment = environment
        self.gateway.start()
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        """Wait until the gateway answers and sends to Kafka."""
        wait_until(lambda: self._answer().get("circuit") == "closed", _HEALTHY_S, "the gateway sends to Kafka again")

    def wait_until_drained(self) -> Held:
        """Wait until no record waits in the store; returns the events set aside, and those lost to damage."""
        wait_until(lambda: self._answer().get("backlog") == 0, _DRAINED_S, "the store is drained")
        found = self._fallback()
        return Held(int(found["refused"]), int(found["lost"]))

    def give_up(self) -> None:
        """As a person does who has looked: give up what was set aside, and acknowledge what was lost."""
        self.gateway.terminate()
        assert self.gateway.run("pipeline", "gateway", "replay", "--give-up", "the proof has counted it").wait() == 0
        self.gateway.start()

    def reconcile(self, since: dt.datetime) -> int:
        """Run the command once over all rows, and return its exit code. It bypasses the proxy."""
        settings = {"KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers}
        command = [
            sys.executable,
            "-m",
            "pipeline",
            "gateway",
            "reconcile",
            "--min-age-s",
            "0",
            "--since",
            since.isoformat(),
        ]
        with self.gateway.log.open("ab") as log:
            process = self.disk.run(
                command, env=self.gateway.environment | settings, stdout=log, stderr=subprocess.STDOUT
            )
            return process.wait(_RECONCILED_S)

    @property
    def settings(self) -> Settings:
        """The gateway's settings, with the passwords of its database."""
        return self.gateway.settings

    def _live_through(self, spans: list[Span], began: float, damages: int, backlog: int) -> None:
        for span in spans:
            _sleep_until(began + span.begin_s)
            self._begin(span)
            try:
                while span.fault is Fault.ANSWERS_LOST and time.monotonic() < began + span.end_s:
                    self._reconcile_before_requests_arrive()
                while span.fault is Fault.CLOCK_SET and time.monotonic() < began + span.end_s:
                    if self._tells(span.wrong_s) and span not in self.told:
                        self.told.append(span)
                    time.sleep(_LOOK_S)
                _sleep_until(began + span.end_s)
                if span.fault in OF_THE_BROKER:
                    wait_until(lambda: len(self.damages) >= damages, _FILLED_S, "the store's file is damaged")
                    wait_until(lambda: self._backlog() >= backlog, _FILLED_S, f"{backlog} events wait")
            finally:
                self._end(span.fault)

    def _reconcile_before_requests_arrive(self) -> None:
        """Reconcile while requests are held, so that it finds unpublished rows whose records the gateway has sent."""
        self.proxy.hold_requests()
        try:
            self.reconciled += self.reconcile(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1)) == 0
        finally:
            self.proxy.let_requests_go()

    def _begin(self, span: Span) -> None:
        match span.fault:
            case Fault.BROKER_KILLED:
                self.broker.kill()
            case Fault.BROKER_FROZEN:
                self.broker.freeze()
            case Fault.RIGHT_LOST:
                Access(self.broker.bootstrap_servers).deny(self.pipeline.stream.name)
            case Fault.ANSWERS_LOST:
                self.proxy.lose_answers()
            case Fault.OTHER_CLUSTER:
                self.clusters.swap()
            case Fault.DISK_FULL:
                self.disk.fill()
            case Fault.CLOCK_SET:
                self.clock.set(span.wrong_s)

    def _end(self, fault: Fault) -> None:
        match fault:
            case Fault.BROKER_KILLED:
                self.broker.start()
            case Fault.BROKER_FROZEN:
                self.broker.thaw()
            case Fault.RIGHT_LOST:
                Access(self.broker.bootstrap_servers).allow(self.pipeline.stream.name)
            case Fault.ANSWERS_LOST:
                self.proxy.bring_answers()
            case Fault.OTHER_CLUSTER:
                self.clusters.restore()
            case Fault.DISK_FULL:
                self.disk.free()
            case Fault.CLOCK_SET:
                self.clock.set(0.0)

    def _tend_gateway(self, kills: list[Span], cuts: list[Span], began: float, ended: threading.Event) -> None:
        """Kill the gateway as planned, and restart it whenever it has ended, until the other tasks have ended."""
        replayed = None
        while kills or cuts or not ended.is_set():
            process = self.gateway.process
            if ended.is_set():
                kills = [kill for kill in kills if kill.fault not in OF_THE_FILE]  # nothing came into the store
            if kills and time.monotonic() >= began + kills[0].begin_s and self._is_due(kills[0].fault):
                kill = kills.pop(0)
                self._kill_gateway(began + kill.end_s, kill.fault if kill.fault in OF_THE_FILE else None)
            elif process is not None and process.poll() is not None:
                self.exits.append(process.returncode)
                time.sleep(_RESTART_S)
                self.gateway.launch()
            elif cuts and not kills:
                now = self._fallback()
                if replayed is not None and now.get("backlog") and now["replayed"] > replayed:
                    seen, cut = time.monotonic(), cuts.pop(0)
                    _sleep_until(seen + cut.begin_s)
                    self._kill_gateway(seen + cut.end_s)
                    self.cuts += 1
                elif ended.is_set() and (now.get("backlog") == 0 or time.monotonic() > began + _HEALTHY_S):
                    cuts = []  # it is over, or never begins: that is for others to tell
                replayed = now.get("replayed")
            time.sleep(_LOOK_S)

    def _is_due(self, fault: Fault) -> bool:
        return fault not in OF_THE_FILE or self._backlog() > 0

    def _backlog(self) -> int:
        """Return the number of events that wait in the store; 0 without a response."""
        return int(self._fallback().get("backlog", 0))

    def _kill_gateway(self, until: float, damage: Fault | None = None) -> None:
        self.gateway.kill()
        if damage is not None:
            self._damage(damage)
        _sleep_until(until)
        self.gateway.launch()

    def _damage(self, kind: Fault) -> None:
        folder, seed = self.gateway.environment["GATEWAY_FALLBACK_DIR"], f"{len(self.damages)}"
        command = [sys.executable, "-m", "tests.faults.damage", folder, str(kind), seed]
        process = self.disk.run(command, stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate()
        self.damages.append(str(output).strip() or f"{kind}: none was done")

    def _answer(self) -> dict[str, Any]:
        process = self.gateway.process
        assert process is None or process.poll() is None, f"the gateway ended with {process.returncode}, see its log"
        return self._fallback()

    def _tells(self, wrong_s: float) -> bool:
        """True if the gateway says by how much its clock is wrong, and warns if it matters."""
        answer = self._fallback()
        ahead_s = answer.get("clockAheadS")
        warns = any("the clock of this machine" in text for text in answer.get("degraded", ()))
        return ahead_s is not None and abs(ahead_s - wrong_s) < _NEARLY_S and warns == (abs(wrong_s) > MAX_SKEW_S)

    def _fallback(self) -> dict[str, Any]:
        """Return the response of GET /fallback; empty without a response."""
        try:
            with self.gateway.client() as client:
                return client.fallback()
        except GatewayUnavailable:
            return {}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def add_second_sender(gateway: GatewayProcess, pipeline: Definition) -> None:
    """Give the gateway the token of a second sender to the pipeline's stream. It reads the file when it starts."""
    tokens = Path(gateway.environment["GATEWAY_TOKENS_FILE"])
    other = Entry("other", (digest(OTHER_TOKEN),), topics=(pipeline.stream.name,))
    token_file.write(tokens, token_file.add(token_file.read(tokens), other))


@contextlib.contextmanager
def parts_in(folder: Path, postgres: PostgresTestServer, pipeline: str = SITE_NAME) -> Iterator[Parts]:
    """Yield the parts, running and healthy, with their logs in the folder; stop them at the end.

    Events are records of the pipeline's stream; the database is that of the site.
    """
    gateway = folder / "gateway"
    gateway.mkdir(parents=True)
    migrated(postgres, _DATABASE)
    definition = PIPELINES[pipeline]
    with (
        ThreadPoolExecutor(4) as executors,
        two_clusters(folder / "kafka", AUTHORIZER) as clusters,
        small_disk(folder / "disk", _DISK_BYTES) as disk,
        contextlib.closing(SetClock(folder / "clock")) as clock,
    ):
        gc.collect()  # an admin client that lives on tells the terminal of every outage
        more = {"GATEWAY_REPLAY_MAX_RATE": str(_REPLAY_RATE), **database_environment(postgres, _DATABASE)}
        on_disk = disk.gateway(gateway, clusters.bootstrap_servers, **more, **clock.variables)
        on_disk.program = ("tests.support.set_clock", *on_disk.program)
        add_second_sender(on_disk, definition)
        try:
            on_disk.start()
            parts = Parts(clusters, disk, on_disk, definition, clock, executors)
            parts.wait_until_healthy()
            yield parts
        finally:
            if on_disk.process is not None:
                on_disk.kill()
            clusters.own.mend()
