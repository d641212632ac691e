"""Environments that are replaced, with a real package index of one package and real processes that use them."""

import hashlib
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack.bootstrap import ensure_environment
from stack.layout import Layout, StackError
from tests.support.messages import IN_USE, INSTALL_FAILED

USER = "import sys; print('ready', flush=True); sys.stdin.readline(); import tiny; print(tiny.VERSION, flush=True)"


def wheel(folder: Path, version: str) -> str:
    """Puts a wheel of the package `tiny` there, and returns its line of a lock file."""
    path = folder / f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", f"VERSION = '{version}'\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"tiny=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("index")
    return lambda version: f"--no-index\n--find-links {folder}\n{wheel(folder, version)}"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory, index: Callable[[str], str]) -> Layout:
    made = Layout.of(tmp_path_factory.mktemp("clones") / "clone")
    made.state.mkdir(parents=True)
    (made.root / "requirements-build.lock").write_text(index("1.0"))
    (made.root / "requirements-local.lock").write_text("")
    (made.root / "requirements.lock").write_text(index("1.0"))
    ensure_environment(made)
    return made


@pytest.fixture
def user(layout: Layout) -> Iterator[subprocess.Popen[str]]:
    """A process that runs in the environment and has not imported everything yet."""
    command = [str(layout.venv / "bin" / "python"), "-c", USER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def installed(layout: Layout) -> str:
    python = layout.venv / "bin" / "python"
    command = [python, "-c", "import tiny; print(tiny.VERSION)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_environment_in_use_is_not_replaced(layout, user, index):
    (layout.root / "requirements.lock").write_text(index("2.0"))
    with pytest.raises(StackError, match=f"{IN_USE}.*pid {user.pid}"):
        ensure_environment(layout)
    assert user.communicate("go\n")[0] == "1.0\n"


def test_unreachable_index_leaves_the_environment_as_it_is(layout, monkeypatch):
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    lock = "--index-url http://127.0.0.1:9/simple\ntiny==3.0 --hash=sha256:" + "0" * 64 + "\n"
    (layout.root / "requirements.lock").write_text(lock)
    with pytest.raises(StackError, match=f"{INSTALL_FAILED}, see .*: check the network"):
        ensure_environment(layout)
    assert installed(layout) == "1.0"


def test_changed_lock_file_makes_another_environment_and_leaves_no_other(layout, index):
    (layout.root / "requirements.lock").write_text(index("2.0"))
    ensure_environment(layout)
    assert installed(layout) == "2.0"
    assert sorted(path.name for path in layout.state.iterdir()) == ["logs", "venv"]
