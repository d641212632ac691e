"""docs/pipelines.md is followed as written: it makes a third pipeline in a clone, evolves it and rebuilds a day."""

import re

import pytest

from stack import env_file
from stack.layout import Layout
from tests.support.clone import Clone
from tests.support.documents import FENCED, ROOT
from tests.support.gateway_process import LONG_DEADLINE
from tests.support.walkthrough import Step, follow

GUIDE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
FOLLOWED = GUIDE[GUIDE.index("\n## Make another pipeline\n") : GUIDE.index("\n### Effect of a migration\n")]

# The sentence before a block of TOML says what the reader does with it.
NEW_FILE = re.compile(r"Write this to `([\w.]+)` in `([\w/]+)`:\s*\Z")
ADDED_LINE = re.compile(r"Add this line to `(\w+)` in `(\[\w+\])`[^\n]*:\s*\Z")
WRONG_LINE = re.compile(r"with this line in `(\[\w+\])`:\s*\Z")


def with_added(definition, array, section, line):
    """The definition with the line at the end of the section's array."""
    end = definition.index("\n]", definition.index(f"\n{array} = [", definition.index(section))) + 1
    return definition[:end] + line + definition[end:]


def with_replaced(definition, section, line):
    """The definition with the line in place of the section's line of the same key."""
    start = definition.index(f"\n{line.split()[0]} = ", definition.index(section)) + 1
    return definition[:start] + line + definition[definition.index("\n", start) + 1 :]


class Reader:
    """Types the guide's commands and keeps its definition; what is wrong in an example is put right again."""

    def __init__(self, files):
        self.steps = []
        self.definition = ""
        self.file = ""
        self._files = files

    def save(self, definition):
        """A command that writes the definition."""
        copy = self._files / f"{len(list(self._files.iterdir()))}.toml"
        copy.write_text(definition, encoding="utf-8")
        return f"cp {copy} {self.file}\n"

    def read_toml(self, before, block):
        if found := NEW_FILE.search(before):
            self.file, self.definition = f"{found[2]}/{found[1]}", block
        elif found := ADDED_LINE.search(before):
            self.definition = with_added(self.definition, *found.groups(), block)
        else:
            found = WRONG_LINE.search(before)
            assert found, before[-200:]
            wrong = self.save(with_replaced(self.definition, found[1], block))
            first = self.steps[-1].commands.splitlines()[0]
            right = f"{{ code=0; {first} || code=$?; }}\n{self.save(self.definition)}test $code = 78\n"
            self.steps.append(Step(wrong + right, ""))
            return
        self.steps.append(Step(self.save(self.definition), ""))

    def read(self, text):
        for match in FENCED.finditer(text):
            language, block = match.groups()
            match language:
                case "toml":
                    self.read_toml(text[: match.start()], block)
                case "text":
                    self.steps[-1] = self.steps[-1]._replace(shown=block)
                case "sh" if not block.startswith("make "):  # `make` is the fixture's
                    self.steps.append(Step(block, ""))
        return self.steps


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = Clone(tmp_path_factory.mktemp("guide") / "clone", **LONG_DEADLINE)
    (made.layout.state / "venv").symlink_to(Layout.of().venv)
    env_file.ensure(made.layout.env_file)
    yield made
    made.run("-m", "stack", "down")


def test_the_stack_refuses_a_wrong_definition(clone):
    file = clone.layout.root / "include" / "pipelines" / "order_detail.toml"
    right = file.read_text(encoding="utf-8")
    file.write_text(with_replaced(right, "[stream]", 'day = "dueOn"\n'), encoding="utf-8")
    refused = clone.run("-m", "stack", "up", "--only", "gateway")
    file.write_text(right, encoding="utf-8")
    assert refused.returncode == 1
    assert refused.stderr == (
        "up: order_detail.toml: [stream] day = 'dueOn': not a timestamp that is never null; "
        "name a field that never changes\n"
    )


@pytest.mark.timeout(900)
def test_the_guide_makes_a_third_pipeline_evolves_it_and_rebuilds_a_day(clone, tmp_path):
    reader = Reader(tmp_path)
    follow(reader.read(FOLLOWED), clone.layout.root)
    assert reader.definition.count("channel") == 2, "the guide adds a column"
