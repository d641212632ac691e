"""A benchmark that misses its goal says so."""

import json

import pytest

from benchmarks.command import measure_each
from benchmarks.gateway.report import row
from benchmarks.gateway.wrk import Load
from benchmarks.report import Goal, Report, conclude
from stack.layout import StackError


@pytest.mark.parametrize(
    ("goal", "is_reached"),
    [
        (Goal("g", 1.0, at_least=1.0), True),
        (Goal("g", 0.99, at_least=1.0), False),
        (Goal("g", 100.0, at_most=100.0), True),
        (Goal("g", 100.1, at_most=100.0), False),
        (Goal("g", float("nan"), at_least=1.0), False),
        (Goal("g", float("nan"), at_most=1.0), False),
    ],
)
def test_goal_is_reached_within_its_bound(goal, is_reached):
    assert goal.is_reached is is_reached


def test_report_holds_what_was_measured_and_is_good_only_when_all_goals_are_reached(capsys):
    report = Report("single")
    load = Load("ours", 1000, 2.0, 1.0, 3.0, 9.0, bad_status=1, broken=2, timeouts=3, cpu_us=50.0)
    report.add(row("ours 1", load, events_a_request=500))
    report.judge(Goal("one", 2.0, at_least=1.0))
    assert report.is_good
    report.judge(Goal("two", 2.0, at_most=1.0))
    assert not report.is_good
    [shown] = report.as_data()["rows"]
    assert (shown["events/s"], shown["p99 ms"], shown["not 2xx"], shown["broken"]) == (250_000, 3.0, 1, 5)
    assert [goal["reached"] for goal in report.as_data()["goals"]] == [True, False]
    assert "MISSED   two: 2 (at most 1)" in capsys.readouterr().out


def test_a_missed_goal_is_the_exit_code_and_is_named(capsys, tmp_path):
    good, bad = Report("good"), Report("bad")
    good.judge(Goal("one", 1.0, at_least=1.0))
    bad.judge(Goal("two", 2.0, at_most=1.0))
    assert conclude([good], None) == 0
    assert conclude([good, bad], tmp_path / "figures.json") == 1
    assert "missed: bad: two" in capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [report["goals"][0]["reached"] for report in figures] == [True, False]


def test_a_benchmark_that_fails_is_named_and_the_others_are_measured(capsys):
    def measured(name):
        if name == "second":
            raise AssertionError("nothing moved\nthe log")
        return Report(name)

    reports = list(measure_each(["first", "second", "third"], measured))
    assert [report.is_good for report in reports] == [True, False, True]
    assert conclude(reports, None) == 1
    assert "failed: second: AssertionError: nothing moved\n" in capsys.readouterr().out


def test_a_program_that_is_missing_ends_all_benchmarks():
    def measured(_name):
        raise StackError("wrk is not on PATH")

    with pytest.raises(StackError):
        list(measure_each(["first", "second"], measured))
