"""Every download has its hash in a lock file, and is verified before it runs."""

import re
from itertools import pairwise

import pytest
import yaml

from stack.bootstrap import INSTALLS
from stack.layout import PROJECT_ROOT
from tests.support.image import read_stages

LOCKS = sorted(PROJECT_ROOT.glob("requirements*.lock"))
WORKFLOWS = sorted((PROJECT_ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_a_version_and_hashes(lock):
    packages = re.findall(r"^([a-z0-9].*?)(?=^[a-z0-9]|\Z)", lock.read_text(), re.MULTILINE | re.DOTALL)
    assert packages
    for package in packages:
        assert re.match(r"[\w.\[\]-]+==[\w.+!]+ ", package), package
        assert "--hash=sha256:" in package, package


def test_the_image_installs_as_the_local_stack_does():
    (install,) = [run for stage in read_stages() for run in stage.runs if "pip install" in run]
    for lock, options in INSTALLS:
        assert f"--require-hashes {' '.join(options)} -r /build/{lock}" in install


def test_only_packages_without_wheels_are_built_and_nothing_is_downloaded_for_it():
    (_, first), (_, second) = INSTALLS
    assert first == ("--no-deps", "--only-binary", ":all:")
    assert "--no-build-isolation" in second
    built = [value for flag, value in pairwise(second) if flag == "--no-binary"]
    assert built == ["pyspark", "pyspark-client"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_every_lock_file_is_audited():
    audit = (PROJECT_ROOT / "Makefile").read_text().partition("\naudit:")[2].partition("\nlock:")[0]
    jars = [path.relative_to(PROJECT_ROOT).as_posix() for path in PROJECT_ROOT.glob("[a-z]*/**/jars.lock")]
    assert len(jars) == 2
    assert [name for name in (*(lock.name for lock in LOCKS), *jars) if name not in audit] == []
