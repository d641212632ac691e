"""Deletes and creates a topic again under the running stream, and repairs the stream as an operator would."""

import gc
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from include.contracts.errors import MISCONFIGURED
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Settings
from tests.faults.stream_driver import Driver
from tests.faults.stream_topics import Record
from tests.servers import wait_until
from tests.support.pipeline import ROOT
from tests.support.sending import sending
from tests.support.topic_log import make_again

_DEADLINE_S = 120.0
_REFUSED_S = 240.0  # a task that reads the deleted topic fails after spark.network.timeout, 120 s


class TopicAgain:
    """The stream's topic, made again. The driver must refuse it, and the repair must make it go on."""

    def __init__(self, settings: Settings, driver: Driver, variables: Mapping[str, str], log: Path) -> None:
        self._settings = settings
        self._topic = settings.pipeline.stream.name
        self._driver = driver
        self._variables = variables
        self._log = log
        self._ended = 0

    def make(self) -> str:
        """Delete the topic and create it again. Returns the id of the deleted one."""
        former_id = OffsetReader(self._settings.kafka.connection).topic_id(self._topic)
        self._ended = len(self._driver.ended)
        make_again(self._settings.kafka, self._topic)
        gc.collect()  # an admin client that lives on tells the terminal of every outage
        return former_id

    def wait_until_refused(self) -> None:
        """Wait until the driver refuses the topic."""
        wait_until(lambda: any(code == MISCONFIGURED for _, code in self._driver.ended[self._ended :]), _REFUSED_S,
                   f"the driver refuses the topic, see {self._driver.log}")  # fmt: skip

    def send_again(self, records: Sequence[Record]) -> None:
        """Send the former topic's records as a mirror would: partition, order and headers stay."""
        with sending(self._settings.kafka.bootstrap_servers, {"enable.idempotence": True}) as sender:
            for record in records:
                sender.send(record.place.topic, record.value, record.key, partition=record.place.partition,
                            headers=record.sent_headers)  # fmt: skip

    def repair(self) -> None:
        """Repair the stream as the driver's log says; returns when it continues."""
        wait_until(self._is_repaired, _DEADLINE_S, f"the repair succeeds, see {self._log}")
        wait_until(self._driver.is_healthy, _DEADLINE_S, f"the stream goes on, see {self._driver.log}")

    def _is_repaired(self) -> bool:
        with self._log.open("ab") as log:
            line = [sys.executable, "-m", "pipeline", "stream", "repair"]
            environment = {**os.environ, **self._variables, "PYTHONPATH": str(ROOT)}
            return subprocess.run(line, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False,
                                  timeout=_DEADLINE_S).returncode == 0  # fmt: skip
