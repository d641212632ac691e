"""The runbook of alerts has each alert as the code has it: name, severity, limits with their defaults, runbook."""

import re
from pathlib import Path

import pytest

from include.integrity.watch.audit import AUDITED, STREAM_AUDITED
from include.integrity.watch.conditions import CONDITIONS
from include.runtime.environment_reader import settings_of
from include.runtime.settings import AlertSettings

ROOT = Path(__file__).resolve().parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
TEXT = (RUNBOOKS / "alerts.md").read_text(encoding="utf-8").partition("\n## List of alerts\n")[2].partition("\n## ")[0]
ROWS = {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]]
        for cells in (line.strip("|").split("|") for line in TEXT.splitlines() if line.startswith("| `"))}  # fmt: skip


def test_every_alert_is_in_the_table_once():
    audited = {**AUDITED, **STREAM_AUDITED}
    assert list(ROWS) == [*(one.name for one in CONDITIONS), "database_silent", *audited]
    assert {name: ROWS[name][0] for name in audited} == audited


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda one: one.name)
def test_an_alert_has_its_severity_and_its_runbook(condition):
    severity, _, _, action = ROWS[condition.name]
    assert severity == condition.severity
    assert (RUNBOOKS / f"{condition.runbook}.md").is_file()
    if condition.runbook != "alerts":
        assert re.search(rf"\]\({condition.runbook}\.md(#[\w-]+)?\)", action)


def test_every_limit_is_named_at_its_alert():
    named = re.findall(r"`(ALERT_\w+)`", "".join(row[2] for row in ROWS.values()))
    _webhook, _mail, *limits = settings_of(AlertSettings)
    assert sorted(named) == sorted(each.variable for each in limits)
