"""A topic is deleted and created again while the join has a batch of it: real driver, Kafka, PostgreSQL."""

import pytest

from include.contracts.errors import MISCONFIGURED
from tests.fakes.events import board, member
from tests.faults.stream_driver import Driver
from tests.servers import wait_until
from tests.support.pipeline import environment, produce, rows, with_topics
from tests.support.topic_log import make_again

BATCH = "join.planned"  # its offsets are fixed, and nothing of it is read
ENDS_S = 90.0  # the topics' ids are read every ten seconds, and a read waits for 30 s


@pytest.mark.timeout(600)
def test_the_driver_notices_it_although_the_batch_waits_for_records_that_are_gone(kafka, postgres, tmp_path):
    settings = with_topics(kafka, postgres, "again_live", tmp_path)
    produce(settings, [("member", 7, member(7)), ("board", 1, board(1, 7))])
    driver = Driver(environment(kafka, postgres, "again_live", tmp_path), tmp_path / "driver")
    driver.start()
    try:
        wait_until(lambda: rows(settings, "SELECT count(*) FROM board_detail") == [(1,)], 120, f"see {driver.log}")
        driver.arm_pause(BATCH)
        produce(settings, [("board", n, board(n, 7)) for n in range(2, 100)])
        assert driver.is_paused_at(BATCH)
        try:
            make_again(settings.kafka, "board")
            produce(settings, [("board", 1, board(1, 7))])  # no partition ends before the batch's first record
        finally:
            driver.go_on(BATCH)
        wait_until(lambda: driver.ended, ENDS_S, f"the driver ends, see {driver.log}")
        assert driver.ended[0] == ("by itself", MISCONFIGURED), driver.log
        assert "ERROR include.runtime.command TopicReplaced" in driver.log.read_text()
    finally:
        driver.close()
