"""The notes of a release, as its workflow takes them from the changelog."""

import os
import subprocess
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
    log = "# Changelog\n\n## [Unreleased]\n\n- c\n\n## [1.10.0] - 2026-12-01\n\n- b\n\n## [1.1.0] - 2026-11-01\n\n- a\n"
    assert notes(tmp_path, "v1.10.0", log).returncode == 0
    assert (tmp_path / "notes.md").read_text().split() == ["-", "b"]
    assert notes(tmp_path, "v1.1.0", log).returncode == 0
    assert (tmp_path / "notes.md").read_text().split() == ["-", "a"]


def test_a_version_without_a_section_is_not_released(tmp_path):
    answer = notes(tmp_path, "v2.0.0", "## [Unreleased]\n\n- c\n")
    assert (answer.returncode, answer.stderr) == (1, "CHANGELOG.md has no section for v2.0.0\n")


def test_the_changelog_has_the_sections_that_it_looks_for(tmp_path):
    assert notes(tmp_path, "v0.1.0", (ROOT / "CHANGELOG.md").read_text()).returncode == 0
