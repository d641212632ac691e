"""Every download has its hash in a lock file, and is verified before it runs."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

from stack.bootstrap import INSTALLS
from stack.jars import read_lock
from stack.layout import PROJECT_ROOT, Layout
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
    install, tools = [run for stage in read_stages() for run in stage.runs if "pip install" in run]
    for lock, options in INSTALLS:
        assert f"--require-hashes {' '.join(options)} -r /build/{lock}" in install
    assert "--require-hashes --no-deps --only-binary :all: -r /build/requirements-audit.lock" in tools


def test_a_build_that_gets_no_jars_prints_the_reason(tmp_path):
    """The layer with the log is not kept."""
    (fetch,) = [run for stage in read_stages() for run in stage.runs if "stack.jars fetch" in run]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "jars.log").write_text("PKIX path building failed\n")
    command = re.sub(r"--mount=\S+ ", "", fetch).replace("python -m stack.jars", "false").replace("/opt", str(tmp_path))
    built = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout) == (1, "PKIX path building failed\n")


def test_the_image_lists_its_packages_and_jars_with_their_licences(tmp_path):
    """Run the Dockerfile's commands on this environment, which has packages of developers too."""
    (run,) = [run for stage in read_stages() for run in stage.runs if "cyclonedx-py" in run]
    assert ("lists", "/") in read_stages()[-1].copies_from
    jars = Layout.of().jars
    for there, here in (("tools/bin/", ""), ("/opt/venv", sys.prefix), ("/opt/jars", str(jars)),
                        ("/lists", str(tmp_path / "lists")), ("python -m", f"{sys.executable} -m")):  # fmt: skip
        run = run.replace(there, here)
    make, add_jars = run.rsplit(" && ", 1)
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"

    subprocess.run(["bash", "-ec", make], cwd=PROJECT_ROOT, env={**os.environ, "PATH": path}, check=True)
    file = tmp_path / "lists" / "sbom.cdx.json"
    bill = json.loads(file.read_text())
    locked = {*re.findall(r"^([\w.-]+)==", (PROJECT_ROOT / "requirements.lock").read_text(), re.MULTILINE)}
    bill["components"] = [each for each in bill["components"] if _name(each) in locked]
    file.write_text(json.dumps(bill))
    subprocess.run(["bash", "-ec", add_jars], cwd=PROJECT_ROOT, check=True)

    components = json.loads(file.read_text())["components"]
    installed = {canonicalize_name(each.name): each.version for each in importlib.metadata.distributions()}
    packages = {_name(each): each["version"] for each in components if each["purl"].startswith("pkg:pypi/")}
    assert packages == {name: version for name, version in installed.items() if name in locked}
    connector = [jar for jar in read_lock() if jar.set_name == "spark-kafka"]
    assert {each["purl"]: each["hashes"][0]["content"] for each in components if "hashes" in each} == {
        f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}": jar.sha256 for jar in connector
    }
    notice = (tmp_path / "lists" / "NOTICE").read_text()
    assert re.search(r"^apache-airflow \S+: Apache-2.0$", notice, re.MULTILINE)
    for each in components:
        assert re.search(
            rf"^(?:{each.get('group', '')}:)?{each['name']}[ :]{each['version']}: \w", notice, re.MULTILINE
        )


def _name(component):
    return canonicalize_name(component["name"])


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
