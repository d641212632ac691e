"""Sends boards at a given rate, through the gateway or to the topic, and measures when each appears in the view."""

import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import psycopg2
from confluent_kafka import Producer

from demo import records
from include.contracts.clock import SystemClock, rfc3339
from include.runtime.settings import Settings

_LOOK_S = 0.02
_SEEN_S = 60.0
_SEEN = "SELECT board_id FROM board_detail_masked WHERE board_id = ANY(%s)"
_TURN_S = 0.01
_ids = count(5_000_000_000)


@dataclass
class Delays:
    """Seconds from the acknowledgement to the appearance in the view, in the order of appearance."""

    seconds: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> float:
        """Return a percentile of all delays, in seconds."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[percent - 1]


class View:
    """Polls the view for boards every 20 ms, from a thread. Call `sent` when a board is acknowledged."""

    def __init__(self, settings: Settings) -> None:
        database = settings.database
        self._connection = psycopg2.connect(
            host=database.host, port=database.port, dbname=database.name, user="analyst",
            password=database.password("analyst"),
        )  # fmt: skip
        self._connection.autocommit = True
        self._sent_at: dict[int, float] = {}
        self._ended = threading.Event()
        self.delays = Delays()
        self._thread = threading.Thread(target=self._look, name="view")
        self._thread.start()

    def sent(self, board_id: int) -> None:
        """Record that the board was acknowledged now."""
        self._sent_at[board_id] = time.monotonic()

    def close(self) -> Delays:
        """Wait for the remaining boards; returns the delays. Raises AssertionError if some take over a minute."""
        deadline = time.monotonic() + _SEEN_S
        while self._sent_at and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self._ended.set()
        self._thread.join()
        self._connection.close()
        assert not self._sent_at, f"{len(self._sent_at)} boards are not in the view"
        return self.delays

    def _look(self) -> None:
        with self._connection.cursor() as cursor:
            while not self._ended.wait(_LOOK_S):
                waiting = list(self._sent_at)
                if waiting:
                    cursor.execute(_SEEN, (waiting,))
                    now = time.monotonic()
                    for (board_id,) in cursor.fetchall():
                        self.delays.seconds.append(now - self._sent_at.pop(board_id))


def board(members: int) -> dict[str, Any]:
    """Return a new board by one of the reference members."""
    board_id = next(_ids)
    now = rfc3339(SystemClock().now())
    return {
        "id": board_id, "memberId": records.FIRST_ID + board_id % members, "title": f"post {board_id}",
        "body": "오늘은 하늘이 맑아서 강가를 걸었습니다. " * 6, "createdAt": now, "modifiedAt": now,
    }  # fmt: skip


def through_gateway(url: str, token: str, members: int, rate: float, seconds: float, view: View | None) -> int:
    """Post one board per call, over 8 connections, at `rate` boards/s in total; returns their number.

    Raises AssertionError if one is refused.
    """
    failed: list[str] = []
    sent = [0] * 8
    address = urlsplit(url)

    def calls(number: int) -> None:
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        began = time.monotonic() + number / rate
        while not failed and (due := began + sent[number] * len(sent) / rate) < began + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            one = board(members)
            connection.request("POST", "/topics/board/events", json.dumps(one), headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                failed.append(f"{answer.status}: {text[:300]!r}")
            elif view is not None:
                view.sent(one["id"])
            sent[number] += 1
        connection.close()

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(len(sent))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]
    return sum(sent)


def into_topic(bootstrap_servers: str, members: int, rate: float, seconds: float, view: View | None) -> int:
    """Produce boards to the topic at `rate` boards/s; returns their number. Raises AssertionError if one fails."""
    failed: list[str] = []
    producer = Producer({
        "bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 2, "acks": "all",
        "enable.idempotence": True,
    })  # fmt: skip

    def delivered(board_id: int) -> Callable[[Any, Any], None]:
        def note(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(str(error))
            elif view is not None:
                view.sent(board_id)

        return note

    sent, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * rate:
            one = board(members)
            producer.produce("board", json.dumps(one), str(one["id"]), on_delivery=delivered(one["id"]))
            sent += 1
        producer.poll(_TURN_S)
    assert producer.flush(60) == 0
    assert not failed, failed[0]
    return sent
