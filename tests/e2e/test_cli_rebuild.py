"""A day by hand, from raw to published, by the commands of `pipeline days`: real Kafka, Spark, tables."""

import datetime as dt
import json
from zoneinfo import ZoneInfo

import pytest

from include.contracts.clock import rfc3339
from include.contracts.day import Day
from tests.fakes.events import board, member
from tests.support.pipeline import environment, produce, rows, run_module, with_topics

DAY = Day.of(dt.datetime.now(dt.UTC), "Asia/Seoul").before(1)
NOON = rfc3339(dt.datetime.combine(DAY.date, dt.time(12), ZoneInfo(DAY.zone)))


@pytest.mark.timeout(300)
def test_a_day_is_rebuilt_looked_at_and_published(kafka, postgres, tmp_path):
    settings = with_topics(kafka, postgres, "cli_rebuild", tmp_path)
    variables = {**environment(kafka, postgres, "cli_rebuild", tmp_path), "ARCHIVE_DIR": str(tmp_path / "archive")}

    def command(*arguments):
        return run_module(["-m", "pipeline", "days", *arguments], variables)

    produce(settings, [
        ("member", 7, member(7, createdAt=NOON, modifiedAt=NOON)),
        ("board", 1, board(1, 7, createdAt=NOON, modifiedAt=NOON)),
        ("board", 2, board(2, 404, createdAt=NOON, modifiedAt=NOON)),
    ])  # fmt: skip

    built = json.loads(command("rebuild", "--day", str(DAY), "--reason", "--by hand", "--json"))
    generation = built["report"]["generation"]
    assert (generation["row_count"], generation["pending_count"], built["published"]) == (1, 1, None)
    assert rows(settings, "SELECT reason FROM generation") == [("--by hand",)]
    assert "missing  1" in command("diff", "--day", str(DAY))
    assert rows(settings, "SELECT count(*) FROM board_detail") == [(0,)]
    command("publish", "--day", str(DAY))
    assert rows(settings, "SELECT board_id, finality FROM board_detail") == [(1, "final")]
    text = command("status", "--day", str(DAY))
    assert "rebuilt" in text
    assert "records read from the topic" in text

    produce(settings, [("board", 3, board(3, 7, createdAt=NOON, modifiedAt=NOON))])
    both = command("rebuild", "--day", str(DAY), "--publish")
    assert "late  1" in both
    assert "The day shows generation" in both
    assert rows(settings, "SELECT board_id FROM board_detail ORDER BY 1") == [(1,), (3,)]
    again = json.loads(command("rebuild", "--day", str(DAY), "--publish", "--json"))
    assert again["published"]["was_identical"] is True
