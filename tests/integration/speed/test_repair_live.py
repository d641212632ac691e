"""The repair of a ledger that does not fit its topic: real broker, real PostgreSQL, the pipeline's own topics."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import (
    LOOK,
    ContractMismatch,
    DriverFenced,
    DriverSuperseded,
    LedgerConflict,
    RangeExpired,
    WrongArguments,
)
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.driver_lease import DriverAlive
from include.database.offset_ledger import OffsetLedger
from include.kafka.reader import read_as_rejects
from include.runtime.retry import retry_transient
from include.runtime.settings import EXACTLY_ONCE
from spark_jobs.repair import ManualReject, Place, Repair, reject, run
from spark_jobs.speed import delivery
from spark_jobs.speed.delivery import ExactlyOnce
from spark_jobs.speed.positions import starting_position
from stack.machine import unused
from tests.support.messages import LEDGER_AND_TOPIC, REPAIR
from tests.support.pipeline import ROOT, environment, migrated, rows
from tests.support.topic_log import TopicLog, advance, taken_lease

LEDGER = "SELECT consumer, partition, next_offset FROM offset_ledger ORDER BY 1, 2"
REPAIRS = """
SELECT consumer, topic, partition, from_offset, to_offset, split_part(reason, ':', 1) FROM ledger_repair ORDER BY id
"""

PENDING = """
INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value, kafka_timestamp, version_at,
                           sent_at, page)
VALUES ('board', 0, 1, 1, 7, '2026-11-20', '{}', now(), now(), now(), 7)
"""

REJECTS = """
INSERT INTO reject (topic, partition, "offset", reason, rejected_by)
VALUES ('board', 0, 2, 'broken', 'join'), ('board-detail', 0, 2, 'broken', 'serve')
"""


@pytest.fixture(scope="module")
def log(kafka):
    return TopicLog(kafka.bootstrap_servers)


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    return migrated(kafka, postgres, "repair", tmp_path)


@pytest.fixture
def ledger(settings):
    return OffsetLedger(settings.database)


def has_members(log):
    try:
        return bool(log.offsets.partitions("member"))
    except ContractMismatch:
        return False


class TestRepair:
    """On the pipeline's own topics: board for join, board-detail for serve, each read to its end by its query."""

    @pytest.fixture(autouse=True)
    def topics(self, log, ledger, settings):
        self.settings = settings
        if not has_members(log):
            log.make("member")
        for consumer, topic in (("join", "board"), ("serve", "board-detail")):
            log.make(topic)
            log.send(topic, 0, 5)
            log.send(topic, 1, 3)
            self.start(log, ledger, consumer, topic)
            advance(settings, log, topic, {0: 5, 1: 3}, consumer)

    @pytest.fixture
    def repair(self, log, ledger, settings):
        return Repair(settings, log.offsets, ledger, SystemClock())

    def run(self, repair, *, dry_run=False, force=False, consumers=("join", "serve")):
        with redirect_stdout(io.StringIO()) as printed:
            code = run(repair, consumers, dry_run, force)
        return code, printed.getvalue()

    def start(self, log, ledger, consumer="serve", topic="board-detail"):
        lease = taken_lease(self.settings)
        try:
            return starting_position(ledger, log.offsets, consumer, topic, lease).start
        finally:
            lease.release()

    def lose_three(self, log):
        """Records 5 to 7 of board-detail are gone before they were taken."""
        log.send("board-detail", 0, 4)
        log.delete_before("board-detail", 0, 8)

    def test_a_ledger_that_fits_is_left_alone(self, log, ledger, settings, repair):
        before = rows(settings, LEDGER)
        assert self.run(repair) == (0, "Nothing to repair: the ledger matches its topics.\n")
        assert (rows(settings, LEDGER), rows(settings, REPAIRS)) == (before, [])

    def test_a_dry_run_shows_what_is_lost_and_changes_nothing(self, log, ledger, settings, repair):
        self.lose_three(log)
        before, epochs = rows(settings, LEDGER), rows(settings, "SELECT epoch FROM stream_driver")
        code, text = self.run(repair, dry_run=True)
        assert code == LOOK
        today = str(Day.of(SystemClock().now(), settings.timezone))
        offsets = ["5", "8", "9", "8", "3"]
        assert text.splitlines()[1].split() == [
            "serve", "board-detail", "0", "RangeExpired", *offsets, today, "to", today]  # fmt: skip
        assert "reprocess_days" in text
        assert "join" not in text
        assert (rows(settings, LEDGER), rows(settings, REPAIRS)) == (before, [])
        assert rows(settings, "SELECT epoch FROM stream_driver") == epochs

    def test_expired_records_are_passed_over_and_the_move_is_kept(self, log, ledger, settings, repair):
        self.lose_three(log)
        code, text = self.run(repair)
        assert code == 0
        assert "Partitions moved: 1." in text
        assert self.start(log, ledger) == {0: 8, 1: 3}
        assert rows(settings, REPAIRS) == [("serve", "board-detail", 0, 5, 8, "RangeExpired")]
        assert self.run(repair)[1].startswith("Nothing to repair")

    def test_a_topic_made_again_is_taken_from_its_beginning(self, log, ledger, settings, repair):
        before = log.offsets.topic_id("board-detail")
        log.make("board-detail", 3)
        log.send("board-detail", 0, 9)
        assert self.run(repair)[0] == 0
        assert self.start(log, ledger) == {0: 0, 1: 0, 2: 0}
        assert rows(settings, REPAIRS) == [
            ("serve", "board-detail", 0, 5, 0, "TopicReplaced"),
            ("serve", "board-detail", 1, 3, 0, "TopicReplaced"),
            ("serve", "board-detail", 2, None, 0, "TopicReplaced"),
        ]
        assert rows(settings, "SELECT 1 FROM offset_ledger WHERE topic_id = %s", (before,)) == []
        assert rows(settings, "SELECT DISTINCT from_topic_id FROM ledger_repair WHERE from_offset > 0") == [(before,)]

    def test_what_a_replaced_topic_left_waiting_does_not_stand_in_the_way(self, log, settings, repair):
        """A board that waits now may have the coordinates of one that waited before."""
        before = log.offsets.topic_id("board")
        rows(settings, PENDING)
        rows(settings, REJECTS)
        log.make("board")
        assert self.run(repair)[0] == 0
        rows(settings, PENDING)  # of the new topic
        boards = rows(settings, 'SELECT topic, partition, "offset" FROM pending_record ORDER BY topic')
        assert boards == [("board", 0, 1), (f"board@{before}", -1, 1 - 10**17)]
        assert rows(settings, "SELECT topic FROM reject ORDER BY 1") == [("board-detail",), (f"board@{before}",)]

    def test_a_ledger_beyond_the_end_goes_back_to_the_first_records(self, log, ledger, settings, repair):
        advance(settings, log, "board", {0: 50}, "join")
        code, text = self.run(repair)
        assert code == 0
        assert "unknown" in text
        assert self.start(log, ledger, "join", "board") == {0: 0, 1: 3}
        assert rows(settings, REPAIRS) == [("join", "board", 0, 50, 0, "LedgerBeyondEnd")]

    def test_what_waits_of_lost_records_is_kept_beside_records_with_their_offsets(self, log, settings, repair):
        before = log.offsets.topic_id("board")
        (there,) = read_as_rejects(settings.kafka.connection, "board", OffsetRange({0: 1}, {0: 2}), "")
        rows(settings, PENDING)
        rows(settings, "UPDATE pending_record SET kafka_timestamp = %s", (there.kafka_timestamp,))
        kept = []
        for _ in range(2):  # the partition loses records with the same offsets twice, and others come
            for offset in (3, 30):
                rows(settings, PENDING.replace("'board', 0, 1", f"'board', 0, {offset}"))
            rows(settings, REJECTS.split("),")[0].replace("'board', 0, 2", "'board', 0, 4") + ")")
            advance(settings, log, "board", {0: 50}, "join")
            assert self.run(repair)[0] == 0
            [(number,)] = rows(settings, "SELECT max(id) FROM ledger_repair")
            kept.append(f"board@{before}.{number}")
        waiting = rows(settings, 'SELECT topic, partition, "offset" FROM pending_record ORDER BY 1, 3')
        assert waiting == [("board", 0, 1), *((topic, -1, at - 10**17) for topic in kept for at in (3, 30))]
        assert rows(settings, 'SELECT topic, "offset" FROM reject ORDER BY 1') == [(topic, 4) for topic in kept]
        marks = "SELECT consumer, partition, next_offset FROM offset_ledger WHERE consumer LIKE 'replaced%' ORDER BY 2"
        assert rows(settings, marks) == [("replaced 0", 0, 5), ("replaced 0", 1, 3)]

    def test_an_added_partition_that_dropped_records_gets_its_entry(self, log, ledger, settings, repair):
        log.add_partition("board-detail", 3)
        log.send("board-detail", 2, 4)
        log.delete_before("board-detail", 2, 2)
        assert self.run(repair)[0] == 0
        assert self.start(log, ledger) == {0: 5, 1: 3, 2: 2}
        assert rows(settings, REPAIRS) == [("serve", "board-detail", 2, None, 2, "RangeExpired")]

    def test_only_the_named_query_is_looked_at(self, log, ledger, settings, repair):
        self.lose_three(log)
        assert self.run(repair, consumers=["join"])[0] == 0
        with pytest.raises(RangeExpired):
            self.start(log, ledger)

    def test_boards_whose_details_may_be_lost_are_sent_again(self, log, settings, repair):
        rows(settings, PENDING)
        is_sent = "SELECT sent_at IS NOT NULL, page FROM pending_record"
        advance(settings, log, "board", {0: 50}, "join")
        self.run(repair, consumers=["join"])
        assert rows(settings, is_sent) == [(True, 7)]  # nothing of board-detail was lost
        self.lose_three(log)
        self.run(repair)
        assert rows(settings, is_sent) == [(False, None)]  # Kafka has committed page 7, which does not count now

    def reject(self, log, ledger, settings, repair, record, dry_run=False):
        rejects = ManualReject(settings, log.offsets, ledger)
        with redirect_stdout(io.StringIO()) as printed:
            code = reject(repair, rejects, Place.parse(record, PIPELINE), dry_run, False)
        return code, printed.getvalue()

    def test_one_record_becomes_a_reject_whole(self, log, ledger, settings, repair):
        log.send("board", 0, 2)
        rejected = 'SELECT topic, partition, "offset", key, value, rejected_by FROM reject'
        code, text = self.reject(log, ledger, settings, repair, "board/0/6", dry_run=True)
        assert (code, "has not processed it yet" in text, rows(settings, rejected)) == (0, True, [])
        code, text = self.reject(log, ledger, settings, repair, "board/0/6")
        [(*place, key, value, by)] = rows(settings, rejected)
        assert (place, key, bytes(value), by) == (["board", 0, 6], None, b"0-1", "repair")

    def test_a_board_that_waits_can_be_rejected(self, log, ledger, settings, repair):
        rows(settings, PENDING.replace("now(), 7)", "NULL, NULL)"))
        assert "its member is not known" in self.reject(log, ledger, settings, repair, "board/0/1")[1]
        assert rows(settings, "SELECT 1 FROM pending_record") == []
        assert rows(settings, "SELECT rejected_by FROM reject") == [("repair",)]

    def test_a_driver_that_is_frozen_in_a_transaction_sends_no_record_that_is_rejected(
        self, log, ledger, settings, repair, monkeypatch
    ):
        settings = replace(settings, stream=replace(settings.stream, delivery=EXACTLY_ONCE))
        log.send("board", 0, 1)
        frozen = ExactlyOnce(settings.kafka.connection, PIPELINE)
        retry_transient(lambda: frozen.open([0, 1], log.offsets.topic_id("board"), "1", {}))
        monkeypatch.setattr(
            delivery,
            "failpoint",
            lambda name: "before_commit" in name and self.reject(log, ledger, settings, repair, "board/0/5"),
        )
        frozen.commit([], OffsetRange({}, {0: 6, 1: 3}))
        with pytest.raises(DriverFenced):
            frozen.settle()
        assert rows(settings, 'SELECT "offset" FROM reject') == [(5,)]

    def test_a_record_that_was_taken_is_left_alone(self, log, ledger, settings, repair):
        assert "has processed it" in self.reject(log, ledger, settings, repair, "board/0/4")[1]
        assert rows(settings, "SELECT 1 FROM reject") == []

    def test_a_board_whose_page_may_have_been_sent_is_left_alone(self, log, ledger, settings, repair):
        rows(settings, PENDING.replace("now(), 7)", "NULL, 7)"))
        assert "its next start decides" in self.reject(log, ledger, settings, repair, "board/0/1")[1]
        assert rows(settings, "SELECT page FROM pending_record") == [(7,)]
        assert rows(settings, "SELECT 1 FROM reject") == []

    @pytest.mark.parametrize("record", ["board/0/5", "board/7/0", "board-detail/1/99"])
    def test_a_record_that_is_not_there_is_named(self, log, ledger, settings, repair, record):
        with pytest.raises(WrongArguments, match=record):
            self.reject(log, ledger, settings, repair, record)

    @pytest.mark.parametrize("record", ["board", "board/0", "board/x/0", "member/0/1", "board/0/1/2", ""])
    def test_a_record_is_written_with_its_topic_partition_and_offset(self, record):
        with pytest.raises(WrongArguments, match="write topic/partition/offset"):
            Place.parse(record, PIPELINE)

    def test_it_refuses_while_a_driver_is_alive_unless_told_otherwise(self, log, ledger, settings, repair):
        self.lose_three(log)
        alive = taken_lease(settings)
        rows(settings, "INSERT INTO stream_progress (query, driver_id, heartbeat_at) VALUES ('join', 'here', now())")
        before = rows(settings, LEDGER)
        with pytest.raises(DriverAlive, match="driver=test"):
            self.run(repair)
        assert (rows(settings, LEDGER), rows(settings, REPAIRS)) == (before, [])

        assert self.run(repair, force=True)[0] == 0
        with pytest.raises(DriverSuperseded):
            ledger.advance("join", "board", log.offsets.topic_id("board"), {0: 5}, {0: 6}, alive)

    def test_a_driver_that_fell_silent_is_not_alive(self, log, ledger, settings, repair):
        self.lose_three(log)
        taken_lease(settings)
        rows(settings, "UPDATE stream_driver SET taken_at = now() - interval '1 minute'")
        assert self.run(repair)[0] == 0

    def test_a_ledger_that_moved_since_it_was_looked_at_is_not_moved(self, log, ledger, settings, repair):
        self.lose_three(log)
        position, _ = repair.look("serve")
        advance(settings, log, "board-detail", {0: 6})
        with pytest.raises(LedgerConflict, match="run the command again"):
            repair.move([position])
        assert ("serve", 0, 6) in rows(settings, LEDGER)
        assert rows(settings, REPAIRS) == []

    def test_the_command_says_how_it_ended(self, log, settings, kafka, postgres, tmp_path):
        variables = environment(kafka, postgres, "repair", tmp_path)

        def command(*arguments, **more):
            finished = subprocess.run(
                [sys.executable, "-m", "pipeline", "stream", "repair", *arguments], cwd=ROOT, text=True,
                capture_output=True, check=False, timeout=60, env={**os.environ, **variables, **more})  # fmt: skip
            return finished.returncode, finished.stdout + finished.stderr

        assert command("--dry-run")[0] == 0
        self.lose_three(log)
        code, text = command("--dry-run", "--consumer", "serve")
        assert (code, "RangeExpired" in text) == (LOOK, True)
        assert command("--consumer", "nobody")[0] == 2
        assert command(DATABASE_PORT="1")[0] == 75
        assert command(DATABASE_PORT="none")[0] == 78
        code, text = command()
        assert (code, "Partitions moved: 1." in text) == (0, True)
        assert command("--dry-run")[0] == 0

    @pytest.mark.timeout(300)
    def test_the_driver_refuses_to_start_and_names_the_repair(self, log, settings, kafka, postgres, tmp_path):
        log.make("member")
        self.lose_three(log)
        before = rows(settings, LEDGER)
        (port,) = unused(1)
        variables = {**environment(kafka, postgres, "repair", tmp_path), "STREAM_METRICS_PORT": str(port)}
        ended = subprocess.run(
            [sys.executable, "spark_jobs/stream.py"], cwd=ROOT, text=True, capture_output=True, check=False,
            timeout=240, env={**os.environ, **variables, "PYTHONPATH": str(ROOT)})  # fmt: skip
        assert ended.returncode == 78, ended.stderr[-3000:]
        assert "RangeExpired: " in ended.stderr
        assert f"{LEDGER_AND_TOPIC.format(0, 5, 8, 9)}, 3 records lost" in ended.stderr
        assert REPAIR.format("serve") in ended.stderr
        assert rows(settings, LEDGER) == before
