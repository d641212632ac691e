"""The parts that faults happen to: a broker, and a gateway whose store is on a small disk."""

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from include.gateway import token_file
from include.gateway.client import GatewayUnavailable
from include.gateway.token_file import Entry, digest
from tests.faults.plan import OF_THE_BROKER, Fault, Plan, Span
from tests.servers import kafka_server, wait_until
from tests.support.access import AUTHORIZER, Access
from tests.support.broker import Broker
from tests.support.full_disk import GatewayOnDisk, SmallDisk, small_disk

OTHER_TOKEN = "other-token"  # of a second sender, whose keys are those of the first
_DISK_BYTES = 256 << 20  # only a fault fills it
_LOOK_S = 0.02
_RESTART_S = 0.2
_REPLAY_RATE = 10_000  # records/s: a replay lasts long enough to be cut short
_HEALTHY_S = 90.0
_DRAINED_S = 120.0


@dataclass
class Parts:
    """Real ones. Whatever ends the gateway, it is started again, as a supervisor would."""

    broker: Broker
    disk: SmallDisk
    gateway: GatewayOnDisk
    lanes: ThreadPoolExecutor  # lives as long as the parts: the kernel ends a broker with the thread that started it
    exits: list[int] = field(default_factory=list)  # exit codes of a gateway that nobody killed
    cuts: int = 0  # replays that were cut short

    def suffer(self, faults: Plan) -> None:
        """Live through all faults of a round; healthy again on return. Raises AssertionError if it is not."""
        broker = [span for span in faults if span.fault in OF_THE_BROKER]
        disk = [span for span in faults if span.fault is Fault.DISK_FULL]
        kills = [span for span in faults if span.fault is Fault.GATEWAY_KILLED]
        cuts = [span for span in faults if span.fault is Fault.REPLAY_CUT]
        began, ended = time.monotonic(), threading.Event()
        gateway = self.lanes.submit(self._tend_gateway, kills, cuts, began, ended)
        others: list[Future[None]] = [self.lanes.submit(self._live_through, lane, began) for lane in (broker, disk)]
        try:
            for lane in others:
                lane.result()
        finally:
            ended.set()
            gateway.result()
        self.wait_until_healthy()

    def renew_store(self) -> None:
        """Give the gateway an empty store, while nothing waits in it: one that held more has room in its own file."""
        self.wait_until_drained()
        self.gateway.terminate()
        assert self.disk.run(["rm", "-rf", self.gateway.environment["GATEWAY_FALLBACK_DIR"]]).wait() == 0
        self.gateway.start()

    def wait_until_healthy(self) -> None:
        """Until the gateway answers and sends to Kafka."""
        wait_until(lambda: self._answer().get("circuit") == "closed", _HEALTHY_S, "the gateway sends to Kafka again")

    def wait_until_drained(self) -> int:
        """Until nothing waits in the store; tells how many records are set aside in it."""
        wait_until(lambda: self._answer().get("backlog") == 0, _DRAINED_S, "the store is drained")
        return int(self._fallback()["refused"])

    def _live_through(self, spans: list[Span], began: float) -> None:
        for span in spans:
            _sleep_until(began + span.begin_s)
            self._begin(span.fault)
            try:
                _sleep_until(began + span.end_s)
            finally:
                self._end(span.fault)

    def _begin(self, fault: Fault) -> None:
        match fault:
            case Fault.BROKER_KILLED:
                self.broker.kill()
            case Fault.BROKER_FROZEN:
                self.broker.freeze()
            case Fault.RIGHT_LOST:
                Access(self.broker.bootstrap_servers).deny("board")
            case Fault.DISK_FULL:
                self.disk.fill()

    def _end(self, fault: Fault) -> None:
        match fault:
            case Fault.BROKER_KILLED:
                self.broker.start()
            case Fault.BROKER_FROZEN:
                self.broker.thaw()
            case Fault.RIGHT_LOST:
                Access(self.broker.bootstrap_servers).allow("board")
            case Fault.DISK_FULL:
                self.disk.free()

    def _tend_gateway(self, kills: list[Span], cuts: list[Span], began: float, ended: threading.Event) -> None:
        """Kill it as planned, and start it again whenever it is not there, until the others have ended too."""
        replayed = None
        while kills or cuts or not ended.is_set():
            process = self.gateway.process
            if kills and time.monotonic() >= began + kills[0].begin_s:
                self._kill_gateway(began + kills.pop(0).end_s)
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

    def _kill_gateway(self, until: float) -> None:
        self.gateway.kill()
        _sleep_until(until)
        self.gateway.launch()

    def _answer(self) -> dict[str, Any]:
        process = self.gateway.process
        assert process is None or process.poll() is None, f"the gateway ended with {process.returncode}, see its log"
        return self._fallback()

    def _fallback(self) -> dict[str, Any]:
        """GET /fallback; nothing when there is no answer."""
        try:
            with self.gateway.client() as client:
                return client.fallback()
        except GatewayUnavailable:
            return {}


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


@contextlib.contextmanager
def parts_in(folder: Path) -> Iterator[Parts]:
    """The parts, running and healthy, with their logs in the folder; gone at the end."""
    kafka, gateway = folder / "kafka", folder / "gateway"
    gateway.mkdir(parents=True)
    with (
        ThreadPoolExecutor(3) as lanes,
        kafka_server(kafka, AUTHORIZER) as server,
        small_disk(folder / "disk", _DISK_BYTES) as disk,
    ):
        broker = Broker(server)
        broker.make_topics()
        gc.collect()  # an admin client that lives on tells the terminal of every outage
        on_disk = disk.gateway(gateway, broker.bootstrap_servers, GATEWAY_REPLAY_MAX_RATE=str(_REPLAY_RATE))
        tokens = Path(on_disk.environment["GATEWAY_TOKENS_FILE"])
        other = Entry("other", (digest(OTHER_TOKEN),), topics=("board",))
        token_file.write(tokens, token_file.add(token_file.read(tokens), other))
        try:
            on_disk.start()
            parts = Parts(broker, disk, on_disk, lanes)
            parts.wait_until_healthy()
            yield parts
        finally:
            if on_disk.process is not None:
                on_disk.kill()
            broker.mend()
