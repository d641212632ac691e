"""The guard misses a figure that costs more than its recorded ratio allows, and refuses a file of other figures."""

import pytest

from benchmarks.guard.figures import FIGURES
from benchmarks.guard.recorded import FILE, TOLERANCE, Figure, judge, recorded
from benchmarks.report import Report, conclude
from stack.layout import StackError


def test_the_recorded_ratios_are_those_of_the_figures():
    found = recorded(FILE, FIGURES)
    assert list(found) == list(FIGURES)
    assert all(ratio > 0 for ratio in found.values())


@pytest.mark.parametrize(
    ("ours", "is_reached"), [(50.0 * TOLERANCE, True), (50.1 * TOLERANCE, False), (1.0, True), (float("nan"), False)]
)
def test_a_figure_is_missed_above_the_tolerance(capsys, ours, is_reached):
    report = Report("guard")
    judge(report, [Figure("single", ours, 100.0, "CPU µs a call")], {"single": 0.5})
    assert conclude([report], None) == (0 if is_reached else 1)
    assert ("MISSED" in capsys.readouterr().out) is not is_reached


@pytest.mark.parametrize(
    "text",
    [
        "[ratios]\nsingle = 1.0\n",
        "[ratios]\nsingle = 1.0\narrays = 1.0\nother = 1.0\n",
        "no = toml =",
        "[other]\n",
        "[ratios]\nsingle = 1.0\narrays = 'x'\n",
        "[ratios]\nsingle = 1.0\narrays = inf\n",
        "ratios = 3\n",
    ],
)
def test_a_file_without_exactly_the_figures_is_refused(tmp_path, text):
    file = tmp_path / "guard.toml"
    file.write_text(text)
    with pytest.raises(StackError, match=r"guard\.toml"):
        recorded(file, ("single", "arrays"))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(StackError, match="restore it"):
        recorded(tmp_path / "guard.toml", ("single",))
