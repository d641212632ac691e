"""The layers of `pyproject.toml` hold: an import from a higher layer, or of the same one, fails `make check`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("include", "spark_jobs", "pipeline", "dags", "plugins", "demo", "stack")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    copy = tmp_path_factory.mktemp("house")
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def broken(house: Path) -> list[str]:
    """Return the rules that lint-imports reports as broken, and the imports that break them."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=house, capture_output=True, text=True, timeout=120, check=False)
    assert "Contracts: " in done.stdout, done.stderr
    assert (done.returncode == 0) == (" 0 broken." in done.stdout), done.stdout
    return [line.strip("- ") for line in done.stdout.splitlines() if " -> " in line]


def test_the_house_as_it_is_keeps_them(house):
    assert broken(house) == []


@pytest.mark.parametrize(
    ("room", "imports"),
    [
        ("include/contracts", "include.runtime.settings"),
        ("include/runtime", "include.kafka.offsets"),
        ("include/kafka", "include.database.sessions"),
        ("include/database", "include.integrity.jobs"),
        ("include/gateway", "include.archive.catalogue"),
        ("include/gateway/http", "include.gateway.intake"),
        ("include/gateway/http", "include.runtime.settings"),
        ("include/gateway/http", "include.contracts.clock"),
        ("include/integrity/days", "include.integrity.watch.alerts"),
        ("include/integrity", "include.airflow_support.defaults"),
        ("include/airflow_support", "spark_jobs.stream"),
        ("spark_jobs/batch", "spark_jobs.speed.driver"),
        ("spark_jobs/archive", "spark_jobs.batch.rebuild"),
        ("spark_jobs/speed", "spark_jobs.archive.archiver"),
        ("spark_jobs", "stack.layout"),
        ("spark_jobs", "pipeline.group"),
        ("stack", "pipeline.group"),
        ("stack", "dags.rebuild_day"),
    ],
)
def test_an_import_that_runs_upwards_or_across_is_refused(house, room, imports):
    planted = house / room / "planted.py"
    planted.write_text(f"import {imports}\n")
    try:
        found = broken(house)
    finally:
        planted.unlink()
    assert any(line.startswith(f"{room.replace('/', '.')}.planted -> {imports}") for line in found), found
