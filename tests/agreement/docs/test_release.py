"""The notes of a release, as its workflow takes them from the changelog."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
(NOTES,) = [step["run"] for step in WORKFLOW["jobs"]["release"]["steps"] if step.get("name") == "notes"]


def notes(folder: Path, tag: str, changelog: str) -> subprocess.CompletedProcess[str]:
    (folder / "CHANGELOG.md").write_text(changelog)
    return subprocess.run(["bash", "-e", "-c", NOTES], cwd=folder, env={**os.environ, "GITHUB_REF_NAME": tag},
                          capture_output=True, text=True)  # fmt: skip


def test_a_release_has_the_section_of_its_version(tmp_path):
    log = (
        "# Log\n\n## [2.0.0] - unreleased\n\n- c\n\n## [1.10.0] - 2026-12-01\n\n- b\n\n## [1.1.0] - 2026-11-01\n\n- a\n"
    )
    assert notes(tmp_path, "v1.10.0", log).returncode == 0
    assert (tmp_path / "notes.md").read_text().split() == ["-", "b"]
    assert notes(tmp_path, "v1.1.0", log).returncode == 0
    assert (tmp_path / "notes.md").read_text().split() == ["-", "a"]


def test_a_version_without_a_section_is_not_released(tmp_path):
    answer = notes(tmp_path, "v2.0.0", "## [2.0.1] - unreleased\n\n- c\n")
    assert (answer.returncode, answer.stderr) == (1, "CHANGELOG.md has no section for v2.0.0\n")


def test_a_section_without_a_date_is_not_released(tmp_path):
    answer = notes(tmp_path, "v2.0.0", "## [2.0.0] - unreleased\n\n- c\n")
    assert (answer.returncode, answer.stderr) == (1, "CHANGELOG.md calls v2.0.0 unreleased: write the date\n")


def test_the_newest_section_is_that_of_the_version(tmp_path):
    text = (ROOT / "CHANGELOG.md").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    heading = re.search("^## .*$", text, re.MULTILINE)[0]
    assert re.fullmatch(rf"## \[{re.escape(version)}\] - (unreleased|\d{{4}}-\d\d-\d\d)", heading)
    dated = text.replace(heading, heading.replace("unreleased", "2026-12-01"))
    assert notes(tmp_path, f"v{version}", dated).returncode == 0
