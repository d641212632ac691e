"""The speed layer as a process, then a rebuild: real Kafka, real PostgreSQL, real Spark; a kill in between."""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.integrity.days.catch_up import wait_until_caught_up
from include.integrity.days.certificate import certify
from include.integrity.days.comparison import verify
from spark_jobs.batch.rebuild import rebuild_day
from stack.machine import unused
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import ROOT, environment, produce, rows, run_module, with_topics
from tests.support.publication import publish

DAY = Day.parse("2026-11-20", "Asia/Seoul")
MORNING, EVENING = "2026-11-20T01:00:00.000Z", "2026-11-20T11:00:00.000Z"
VIEW = "SELECT board_id, nickname, title, finality FROM board_detail ORDER BY board_id"


class Stream:
    """`spark_jobs/stream.py` as its supervisor runs it."""

    def __init__(self, variables, log):
        (port,) = unused(1)
        self._variables = {**os.environ, **variables, "PYTHONPATH": str(ROOT), "STREAM_METRICS_PORT": str(port)}
        self._url = f"http://127.0.0.1:{port}"
        self._log = log
        self._process = None

    def start(self):
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "spark_jobs/stream.py"], cwd=ROOT, env=self._variables, stdout=log, stderr=log
            )
        wait_until(self._is_healthy, 120, f"both queries run, see {self._log}")

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self):
        self._process.terminate()
        code = self._process.wait(60)
        self._process = None
        return code

    def metrics(self):
        return urllib.request.urlopen(f"{self._url}/metrics", timeout=60).read().decode()

    def _is_healthy(self):
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-3000:]
        try:
            return urllib.request.urlopen(f"{self._url}/healthz", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False


@pytest.mark.timeout(600)
def test_posts_reach_the_view_and_the_rebuild_corrects_the_day(kafka, postgres, spark, tmp_path):
    variables = environment(kafka, postgres, "pipeline_live", tmp_path)
    settings = with_topics(kafka, postgres, "pipeline_live", tmp_path)
    refuse_unfenced(settings)
    stream = Stream(variables, tmp_path / "stream.log")
    stream.start()
    try:
        # a member changes its name in the evening, and the stream knows only the newest
        produce(settings, [
            ("member", 1, member(1, nickname="아침", modifiedAt=MORNING)),
            ("member", 1, member(1, nickname="저녁", modifiedAt=EVENING)),
            ("member", 2, member(2, nickname="both")),
        ])  # fmt: skip
        produce(settings, [
            ("board", 10, board(10, 1, title="morning", createdAt=MORNING, modifiedAt=MORNING)),
            ("board", 11, board(11, 2, title="first")),
            ("board", 12, board(12, 9, title="waits")),
            ("board", 13, board(13, 2, title="goes")),
            ("board", 13, None),
            ("board", 14, b"{nonsense"),
            ("board", 15, board(15, "nobody")),
        ])  # fmt: skip
        wait_until(lambda: rows(settings, VIEW) == [(10, "저녁", "morning", "live"), (11, "both", "first", "live")],
                   60, "the posts are in the view")  # fmt: skip
        wait_until(lambda: rows(settings, "SELECT board_id FROM pending_record") == [(12,)], 30, "one post waits")
        wait_until(lambda: len(rows(settings, "SELECT 1 FROM reject")) == 2, 30, "two rejects")

        stream.kill()
        produce(settings, [("board", 11, board(11, 2, title="second", modifiedAt=EVENING)),
                           ("board", 16, board(16, 2, title="while it was down")),
                           ("member", 9, member(9, nickname="late"))])  # fmt: skip
        stream.start()
        # serve may write records of one batch of join in several of its own
        wait_until(lambda: rows(settings, VIEW) == [
            (10, "저녁", "morning", "live"),
            (11, "both", "second", "live"),
            (12, "late", "waits", "live"),
            (16, "both", "while it was down", "live"),
        ], 60, "nothing is lost")  # fmt: skip
        wait_until(lambda: rows(settings, "SELECT count(*) FROM pending_record") == [(0,)], 30, "nobody waits")
        assert wait_until_caught_up(settings, 60).is_caught_up
        assert 'stream_input_rows_total{query="join"}' in stream.metrics()

        run_module(["spark_jobs/rebuild_day.py", "--day", str(DAY), "--run-id", "r1"], variables)
        report = verify(settings, DAY, "r1")
        assert report.unexplained == 0
        assert report.corrections["member_version_changed"] == 1
        publish(settings, DAY, "r1")
        certificate = certify(settings, DAY, lambda _: {})
        assert [*map(certificate.count, ("raw_distinct", "rows", "rejected"))] == [5, 4, 1]
        assert rows(settings, VIEW) == [
            (10, "아침", "morning", "final"),
            (11, "both", "second", "final"),
            (12, "late", "waits", "final"),
            (16, "both", "while it was down", "final"),
        ]

        produce(settings, [("board", 16, None)], accepted_at="2026-11-21T00:00:00.000Z")
        wait_until(lambda: [row[0] for row in rows(settings, VIEW)] == [10, 11, 12], 60, "the deleted post is hidden")

        first, second = (
            rebuild_day(lambda: spark.sparkContext, settings, PIPELINE, DAY, run, None) for run in ("r2", "r3")
        )
        assert (first.content_hash, first.row_count) == (second.content_hash, 3)
        assert stream.stop() == 0
    finally:
        stream.kill()
