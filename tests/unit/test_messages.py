"""The text of an error stands once in the tests that look for it, so a new wording of the product changes one line."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import messages

TESTS = Path(__file__).resolve().parents[1]
TABLE = {name: text for name, text in vars(messages).items() if name.isupper()}
WORDS = 4  # in a row; fewer are also in other texts


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    files = (path for path in TESTS.rglob("*.py") if path != Path(messages.__file__))
    return {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in files}


def patterns(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the literal parts of the texts that errors must match, without those of PostgreSQL's own errors."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="raises"), args=[error], keywords=[ast.keyword("match", text)]):
                if "psycopg2" not in ast.unparse(error):
                    yield from (part for part in ast.walk(text) if isinstance(part, ast.Constant))


def runs(text: str) -> set[str]:
    """Return the runs of words in a pattern, which numbers and wildcards end."""
    parts = (re.findall(r"[\w`']+", part) for part in re.split(r"\.\*|\\d|\d", text))
    return {" ".join(words[at : at + WORDS]) for words in parts for at in range(len(words) - WORDS + 1)}


def test_no_text_is_matched_twice(sources):
    places = defaultdict(set)
    for file, source in sources.items():
        for part in patterns(ast.parse(source)):
            for run in runs(str(part.value)):
                places[run].add(f"{file}:{part.lineno}")
    assert {run: found for run, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", TABLE)
def test_a_text_of_the_table_is_of_several_files_and_stands_in_none(sources, name):
    assert [file for file, source in sources.items() if TABLE[name] in source] == []
    assert sum(bool(re.search(rf"\b{name}\b", source)) for source in sources.values()) > 1
