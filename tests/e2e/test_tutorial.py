"""Commands of the tutorial and of README's example run as written, on a stack of their own, and print what is shown."""

import pytest

from stack.layout import Layout
from tests.support.clone import Clone
from tests.support.documents import FENCED, ROOT
from tests.support.gateway_process import LONG_DEADLINE
from tests.support.walkthrough import Step, follow, is_shown

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Example\n")[2].partition("\n## ")[0]


def steps(text):
    """Return the commands with what they print. `make` is the fixture's."""
    found = []
    for language, block in ((match[1], match[2]) for match in FENCED.finditer(text)):
        if language == "text":
            found[-1] = found[-1]._replace(shown=block)
        elif not block.startswith("make "):
            found.append(Step(block, ""))
    return found


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("tutorial") / "clone", **LONG_DEADLINE)
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
    follow(todo, clone.layout.root)


def test_other_output_is_noticed(tmp_path):
    (one,) = steps('```sh\npost members\n```\n\n```text\n{"id":…,"keptIn":"kafka"}\n```\n```sh\nmake down\n```\n')
    assert one == ("post members\n", '{"id":…,"keptIn":"kafka"}\n')
    assert is_shown(one.shown, '{"id":7,"keptIn":"kafka"}\n')
    assert not is_shown(one.shown, '{"id":7,"keptIn":"fallback"}\n')
    assert not is_shown(one.shown, '{"id":7,"keptIn":"kafka"}\nmore\n')
    assert is_shown("…\nup\n", "one\ntwo\nup\n")
    assert not is_shown("…\nup\n", "one\n")
    follow([Step("echo one\n", "one\n"), Step("echo two >&2\n", "two\n")], tmp_path)
    with pytest.raises(AssertionError, match="printed:\ntwo"):
        follow([Step("echo two\n", "one\n")], tmp_path)
