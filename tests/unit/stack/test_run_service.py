"""The version of what runs: code, environment and settings."""

import sys
from pathlib import Path

import pytest

from stack.layout import Layout
from stack.run_service import present_version, record_version, started_with_another

SERVICES = ("gateway", "stream")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.of(root=tmp_path)
    made.make_folders()
    for name in (
        "include/database/queries/select.sql",
        "include/a.py",
        "include/pipelines/order_detail.toml",
        "stack/jars.lock",
        "dags/d.py",
        "include/notes.md",
        ".env",
        "requirements.lock",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    for name in SERVICES:
        record_version(made, name)
    return made


def test_nothing_has_changed(layout):
    assert started_with_another(layout, SERVICES) == []


@pytest.mark.parametrize(
    "name",
    [
        "include/database/queries/select.sql", "include/a.py", "include/pipelines/order_detail.toml", "stack/jars.lock",
        ".env",
    ],
)  # fmt: skip
def test_changed_file_makes_every_service_one_of_another_version(layout, name):
    (layout.root / name).write_text("2")
    assert started_with_another(layout, SERVICES) == ["gateway", "stream"]
    record_version(layout, "stream")
    assert started_with_another(layout, SERVICES) == ["gateway"]


def test_file_that_is_added_or_renamed_makes_another_version(layout):
    before = present_version(layout)
    (layout.root / "include" / "a.py").rename(layout.root / "include" / "b.py")
    assert present_version(layout) != before


@pytest.mark.parametrize("name", ["dags/d.py", "include/notes.md"])
def test_file_that_no_service_keeps_in_memory_makes_none(layout, name):
    (layout.root / name).write_text("2")
    assert started_with_another(layout, SERVICES) == []


def test_other_environment_makes_another_version(layout, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert started_with_another(layout, SERVICES) == ["gateway", "stream"]


def test_service_that_an_earlier_release_started_is_of_another_version(layout):
    (layout.run / "gateway.version").unlink()
    assert started_with_another(layout, SERVICES) == ["gateway"]
