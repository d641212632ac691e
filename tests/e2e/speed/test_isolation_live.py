"""A record that cannot be processed becomes a reject: real driver, real Kafka, real PostgreSQL."""

import json

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.offset_ledger import OffsetLedger
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.repair import ManualReject, Place
from tests.fakes.events import board, member
from tests.faults.stream_driver import Driver
from tests.servers import wait_until
from tests.support.pipeline import environment, rows, with_topics
from tests.support.sending import Sender

KNOWN, STRANGER = 7, 8
MADE_FROM = {"board-at": "board/9/9"}  # only on board-detail it means something


def detail(board_id):
    """A record that is as the join's."""
    nothing = {"kafkaPartition": None, "kafkaOffset": None, "city": None, "phone": None}
    made = {name: value for name, value in board(board_id, KNOWN).items() if name != "id"}
    return {"boardId": board_id, "nickname": "하늘", **made, **nothing}


class Topics:
    """Sends records to the first partition, and knows where they are."""

    def __init__(self, settings):
        self._settings = settings

    def send(self, records):
        """(topic, key, value) records; returns where each is."""
        sender, placed = Sender(self._settings.kafka.bootstrap_servers), []
        for topic, key, value in records:
            sender.send(topic, json.dumps(value), str(key), partition=0, headers=MADE_FROM)
            placed += sender.finish()
        return [f"{each.topic()}/0/{each.offset()}" for each in placed]


@pytest.mark.timeout(900)
def test_a_record_that_fails_becomes_a_reject_and_the_rest_arrives(kafka, postgres, tmp_path):
    settings = with_topics(kafka, postgres, "isolation", tmp_path)
    topics = Topics(settings)
    topics.send([("member", KNOWN, member(KNOWN))])
    boards = topics.send([("board", n, board(n, KNOWN)) for n in range(6)])
    waiting = topics.send([("board", n, board(n, STRANGER)) for n in (10, 11)])
    details = topics.send([("board-detail", n, detail(n)) for n in (20, 21)])
    failing = {
        "join.records": boards[4], "resolve.records": waiting[1], "serve.decode": details[0], "serve.write": details[1]
    }  # fmt: skip
    hand = ManualReject(
        settings, OffsetReader(KafkaConnection(kafka.bootstrap_servers)), OffsetLedger(settings.database)
    )
    assert hand.run(Place.parse(boards[2], PIPELINE), False)
    driver = Driver(environment(kafka, postgres, "isolation", tmp_path), tmp_path / "driver")
    for place, record in failing.items():
        driver.arm_record(place, "fail", record)
    driver.start()
    try:
        wait_until(lambda: rows(settings, "SELECT count(*) FROM pending_record") == [(2,)], 240, "two boards wait")
        topics.send([("member", STRANGER, member(STRANGER))])
        topics.send([("board", 30, board(30, KNOWN))])
        wait_until(lambda: shown(settings) == [0, 1, 3, 5, 10, 30], 240, f"all but five arrive, see {driver.log}")
        wait_until(lambda: rows(settings, ENDED) == [(5, 0)], 240, f"the five are rejects, see {driver.log}")
        rejects = {f"{topic}/{partition}/{offset}": (reason, bytes(key), json.loads(bytes(value)))
                   for topic, partition, offset, reason, key, value in rows(settings, REJECTS)}  # fmt: skip
        assert set(rejects) == {boards[2], *failing.values()}
        assert rejects[boards[2]][0].startswith("rejected by hand by ")
        for record in failing.values():
            reason, _, _ = rejects[record]
            cause = f"RecordFailpoint: a failpoint fails on {record}"
            assert reason.startswith(f"/: {record} cannot be taken: {cause}; "), reason
        assert rejects[boards[4]][1:] == (b"4", board(4, KNOWN))
        assert rejects[waiting[1]][1:] == (b"11", board(11, STRANGER))
        wait_until(driver.is_healthy, 60, f"the driver is healthy, see {driver.log}")
        assert driver.ended == []  # it went on by itself
        assert driver.terminate() == 0
    finally:
        driver.close()


REJECTS = 'SELECT topic, partition, "offset", reason, key, value FROM reject'
ENDED = "SELECT (SELECT count(*) FROM reject), (SELECT count(*) FROM pending_record)"


def shown(settings):
    return [board_id for (board_id,) in rows(settings, "SELECT board_id FROM board_detail ORDER BY 1")]
