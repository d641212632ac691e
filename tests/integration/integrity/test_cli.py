"""The commands `pipeline days`, on a real PostgreSQL: answers for people and programs, exit codes."""

import datetime as dt
import json
import re

import pytest

from include.contracts.day import Day
from include.database.generation_store import GenerationStore
from include.database.named import query
from pipeline.__main__ import main
from tests.support.messages import DAY_NOT_OVER, NOTHING_BUILT
from tests.support.pipeline import environment, migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve

DONE, REFUSED, USAGE, LOOK, LATER, SETTING = 0, 4, 2, 3, 75, 78
YESTERDAY = Day.of(dt.datetime.now(dt.UTC), "Asia/Seoul").before(1)


@pytest.fixture
def settings(postgres, tmp_path, monkeypatch):
    migrated_settings = migrated(None, postgres, "cli", tmp_path)
    for name, value in environment(None, postgres, "cli", tmp_path).items():
        monkeypatch.setenv(name, value)
    return migrated_settings


@pytest.fixture
def run(settings, capsys):
    def call(*arguments):
        """Exit code and standard output."""
        code = main(["days", *arguments])
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def changed_day(settings):
    """A built generation that changes one shown row and adds another."""
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1, nickname="저녁"), row(2, 2)])
    finally:
        store.close()
    return build(settings, [row(1, 1, nickname="아침", table_offset=4), row(2, 2), row(3, 3)], cut=9, run_id="r")


class TestArguments:
    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["publish"],
            ["undo", "--day", str(DAY)],
            ["status", "--limit", "many"],
            ["explode"],
            ["find"],
            ["find", "--key", "1", "--event-id", "e"],
            ["publish", "--day", str(DAY), "--accept-vanishing"],
        ],
    )
    def test_wrong_arguments_are_told(self, run, arguments):
        assert run(*arguments)[0] == USAGE


class TestDiff:
    def test_shows_counts_and_rows_before_and_after(self, run, changed_day):
        code, text = run("diff", "--day", str(DAY))
        assert code == DONE
        assert re.search(r"^member_version_changed +1$", text, re.MULTILINE)
        assert re.search(r"^missing +1$", text, re.MULTILINE)
        assert "  before  nickname='저녁', table_offset=0\n  after   nickname='아침', table_offset=4" in text
        assert "  before  (no row)" in text

    def test_answers_programs_in_json(self, run, changed_day):
        code, text = run("diff", "--day", str(DAY), "--json", "--samples", "1")
        answer = json.loads(text)
        assert code == DONE
        assert answer["report"]["corrections"] == {"member_version_changed": 1, "missing": 1}
        assert [(one["correction"], one["key"]) for one in answer["samples"]] == [
            ("member_version_changed", 1),
            ("missing", 3),
        ]

    def test_publishes_nothing(self, settings, run, changed_day):
        run("diff", "--day", str(DAY))
        assert rows(settings, "SELECT nickname, finality FROM board_detail WHERE board_id = 1") == [("저녁", "live")]

    def test_an_unexplained_difference_has_an_exit_code_of_its_own(self, settings, run, changed_day):
        build(settings, [row(1, 1, title="nobody knows why"), row(2, 2)], cut=9, run_id="odd")
        assert run("diff", "--day", str(DAY), "--run-id", "odd")[0] == LOOK
        assert run("verify", "--day", str(DAY), "--run-id", "odd")[0] == LOOK


class TestADayByHand:
    def test_publish_undo_redo_and_their_history(self, settings, run, changed_day):
        assert run("verify", "--day", str(DAY))[0] == DONE
        assert run("publish", "--day", str(DAY), "--by", "me")[0] == DONE
        assert self.author(settings) == ("아침", "final")
        code, text = run("undo", "--day", str(DAY), "--reason", "is it?", "--dry-run")
        assert (code, text.splitlines()[1:3]) == (
            DONE, ["after   the speed layer's rows alone", "Corrections that would be wrong again:"],
        )  # fmt: skip
        assert "3 rows, hash " in text.splitlines()[0]
        assert "member_version_changed  1" in text
        assert self.author(settings) == ("아침", "final")
        assert len(json.loads(run("history", "--day", str(DAY), "--json")[1])) == 1
        code, text = run("undo", "--day", str(DAY), "--reason", "wrong authors", "--by", "me")
        assert (code, "the speed layer's rows alone" in text) == (DONE, True)
        assert self.author(settings) == ("저녁", "live")
        assert "held since it was undone: wrong authors" in run("status", "--day", str(DAY))[1]
        assert "after   generation " in run("redo", "--day", str(DAY), "--reason", "is it?", "--dry-run")[1]
        assert self.author(settings) == ("저녁", "live")
        assert run("redo", "--day", str(DAY), "--reason", "they were right", "--by", "me")[0] == DONE
        assert self.author(settings) == ("아침", "final")

        code, text = run("history", "--day", str(DAY))
        assert code == DONE
        for word in ("publish", "undo", "redo", "wrong authors", "they were right", "me"):
            assert word in text
        assert len(json.loads(run("history", "--day", str(DAY), "--json")[1])) == 3

    def author(self, settings):
        return rows(settings, "SELECT nickname, finality FROM board_detail WHERE board_id = 1")[0]


class TestStatus:
    def test_tells_rows_corrections_and_the_countdown(self, settings, run, changed_day):
        run("verify", "--day", str(DAY))
        publish(settings, DAY, "r")
        rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late board', 3)", (DAY.date,))
        code, text = run("status", "--day", str(DAY))
        assert code == DONE
        assert "3 late board" in text
        assert "corrected 1 member version changed, 1 missing" in text
        (answer,) = (one for one in json.loads(run("status", "--json")[1]) if one["status"]["day"] == str(DAY))
        assert (answer["status"]["row_count"], answer["status"]["dirty"]) == (3, {"late board": 3})

    def test_nothing_is_an_answer(self, run):
        assert run("status") == (DONE, "Nothing.\n")

    def test_lists_dirty_days_with_their_causes(self, settings, run, changed_day):
        publish(settings, DAY, "r")
        rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late board', 3)", (DAY.date,))
        code, text = run("dirty")
        assert (code, text.split()[:4]) == (DONE, [str(DAY), "3", "late", "board"])


class TestRefusals:
    def test_nothing_built_is_told_with_the_remedy(self, run, caplog):
        assert run("publish", "--day", str(DAY)) == (REFUSED, "")
        assert NOTHING_BUILT in caplog.text

    def test_a_day_that_is_none(self, run, caplog):
        assert run("verify", "--day", "yesterday") == (USAGE, "")
        assert "write it as YYYY-MM-DD" in caplog.text

    def test_a_day_that_is_not_over_is_refused_before_anything_is_built(self, settings, run, caplog):
        assert run("rebuild", "--day", "2199-12-31") == (REFUSED, "")
        assert DAY_NOT_OVER.format("Asia/Seoul") in caplog.text
        assert rows(settings, "SELECT count(*) FROM generation") == [(0,)]

    def test_a_day_past_the_window_is_refused_before_anything_is_built(self, run, caplog):
        assert run("rebuild", "--day", "2020-01-01") == (REFUSED, "")
        assert "oldest day that can be rebuilt" in caplog.text

    def test_a_database_that_is_out_is_tried_again_later(self, run, monkeypatch, caplog):
        monkeypatch.setenv("DATABASE_PORT", "1")
        assert run("status") == (LATER, "")
        assert "DatabaseUnavailable" in caplog.text

    def test_a_database_that_goes_away_meanwhile_is_tried_again_later(self, settings, run, monkeypatch, caplog):
        def cut_off(*_):
            connections = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'integrity'"
            rows(settings, connections, role="batch")

        monkeypatch.setattr("include.integrity.days.day_status.query", lambda *of: cut_off() or query(*of))
        assert run("status") == (LATER, "")
        assert "DatabaseUnavailable" in caplog.text

    def test_a_rebuild_of_a_busy_day_is_tried_again_later(self, settings, capfd):
        with GenerationStore(settings.database).hold(YESTERDAY):
            assert main(["days", "rebuild", "--day", str(YESTERDAY)]) == LATER
        assert "DayBusy" in capfd.readouterr().err

    def test_certifying_needs_the_gateways(self, settings, run, changed_day, caplog):
        publish(settings, DAY, "r")
        assert run("certify", "--day", str(DAY)) == (SETTING, "")
        assert "GATEWAY_ADMIN_TOKEN is not set" in caplog.text
