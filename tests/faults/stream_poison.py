"""Records that keep their contract and that no driver can take: failpoints say so. Among others that must arrive."""

import json
from typing import Any

from confluent_kafka import Message, Producer

from include.settings import Settings
from tests.fakes.events import board, member
from tests.faults.stream_bulk import new_id
from tests.faults.stream_topics import Place
from tests.servers import wait_until
from tests.support.pipeline import produce, rows

_OTHERS = 5
_PENDING_S = 180.0
_IS_PENDING = """
SELECT 1 FROM pending_record
 WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s AND sent_at IS NULL
"""


class Poison:
    """One such record, for a failpoint of `include.failpoints.RECORD_FAILPOINTS`."""

    def __init__(self, settings: Settings, place: str) -> None:
        self._settings = settings
        self._is_of_details = place.startswith("serve.")
        self._must_wait = place == "resolve.records"
        self._author = new_id()

    def send(self) -> Place:
        """Send it with its neighbours; returns its coordinates."""
        before, after = self._boards(), self._boards()
        if not self._must_wait:
            self._send_author()
        produce(self._settings, before)
        if self._is_of_details:
            at = self._sent("board-detail", _detail(new_id(), self._author))
        else:
            at = self._sent("board", board(new_id(), self._author))
        produce(self._settings, after)
        return at

    def release(self, at: Place) -> None:
        """If it is a pending board, send its member."""
        if self._must_wait:
            wait_until(lambda: rows(self._settings, _IS_PENDING, at._asdict()) != [], _PENDING_S, f"{at} waits")
            self._send_author()

    def _send_author(self) -> None:
        produce(self._settings, [("member", self._author, member(self._author))])

    def _boards(self) -> list[tuple[str, object, object]]:
        ids = [new_id() for _ in range(_OTHERS)]
        return [("board", each, board(each, self._author)) for each in ids]

    def _sent(self, topic: str, value: dict[str, Any]) -> Place:
        found: list[Message] = []
        producer = Producer({"bootstrap.servers": self._settings.kafka.bootstrap_servers})
        producer.produce(topic, json.dumps(value), str(value.get("id", value.get("boardId"))),
                         headers={"board-partition": "9", "board-offset": "9"},
                         on_delivery=lambda error, message: None if error else found.append(message))  # fmt: skip
        assert producer.flush(30) == 0
        partition, offset = found[0].partition(), found[0].offset()
        assert partition is not None
        assert offset is not None
        return Place(topic, partition, offset)


def _detail(board_id: int, author: int) -> dict[str, Any]:
    value = board(board_id, author)
    del value["id"]
    return {"boardId": board_id, "nickname": "하늘", "city": None, "phone": None, **value,
            "kafkaPartition": None, "kafkaOffset": None}  # fmt: skip
