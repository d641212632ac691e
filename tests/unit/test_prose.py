"""Docstrings, comments, documents and names keep the rules of CONTRIBUTING.md's conventions that a machine can check.

The linters for prose of the package index do not fit: Vale's package downloads the program when it first runs, and
proselint and codespell read neither docstrings nor rules of one's own.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "include",
    "spark_jobs",
    "pipeline",
    "dags",
    "plugins",
    "deploy",
    "stack",
    "demo",
    "benchmarks",
    "tests",
    "docs",
)
SUFFIXES = {".py", ".sql", ".md"}
FROZEN = ("include/database/migrations/versions/", "tests/unit/test_prose.py")  # released texts, and the rules
WRAP_AT = 120
LONGEST = 132  # a word more in a line does not force its paragraph to be wrapped again

OF_ANY_PIPELINE = ("include/database/", "include/integrity/")
OF_THE_SITE = ("include/database/site.sql", "include/database/queries/system_of_record.sql")
WORDS_OF_ONE_PIPELINE = r"(?i)(?<![a-z])(?:boards?|members?)(?![a-z])(?!_detail)"

DOCSTRING, COMMENT, DOCUMENT, NAME = "docstring", "comment", "document", "name"
PROSE = (DOCSTRING, COMMENT, DOCUMENT)
QUESTION_WORD = "(?:What|Whatever|Who|Whoever|Whose|Whether|Where|Wherever|How|However|Which|That)"


@dataclass(frozen=True)
class Rule:
    """A pattern that texts of these kinds must not have, and what to write instead."""

    pattern: str
    instead: str
    kinds: tuple[str, ...] = (*PROSE, NAME)


RULES = (
    Rule(
        rf"\A{QUESTION_WORD}\b",
        "open with a noun or a verb: 'The offset …', 'Return …', 'True if …'",
        (DOCSTRING,),
    ),
    Rule(rf"\A{QUESTION_WORD}\b(?!.*\?)", "open with a noun or a verb: 'Records that …', 'Columns of …'", (COMMENT,)),
    Rule(
        rf"\A(?:[-*] |\d+\. )?\**{QUESTION_WORD}\b(?!.*\?)",
        "open with the subject: 'Records that …', 'A day whose …'",
        (DOCUMENT,),
    ),
    Rule(r"\A(?:Is|Are|Was|Were|Does|Do|Has|Have|Had|Shall|Can)\b[^\n]*\?", "'True if …'", (DOCSTRING,)),
    Rule(r", an? (?:partition|day|topic|query|batch|board|key)(?=[.;])", "'per partition'", (DOCSTRING, COMMENT)),
    Rule(
        r"(?i)\b(?:made up for|comes? round|came round|br(?:eaks?|oken?|eaking) off)\b",
        "'repeated', 'runs', 'cancelled', 'interrupted'",
        PROSE,
    ),
    Rule(r"(?i)(?<!im)patien(?:t|ce|tly)(?![a-z])", "timeout, limit, retry"),
    Rule(r"(?i)misfit", "mismatch"),
    Rule(r"(?i)offsetter", "offset reader"),
    Rule(r"(?i)(?<![a-z])ailment", "unhealthy reason, state"),
    Rule(r"(?i)(?<![a-z])beat(?:en|s)?(?![a-z])", "tick, heartbeat"),
    Rule(
        r"(?i)\bwhat\s+is\s+none\b|\b(?:is|are)\s+none\s+of\s+(?:its|theirs|ours)\b",
        "say what it is: 'invalid', 'foreign'",
        PROSE,
    ),
    Rule(r"(?i)\bevidently\b", "say which check decides", PROSE),
    Rule(r"(?i)\b(?:has|have|had) (?:a|the last|no) say\b", "decide, take precedence", PROSE),
    Rule(
        r"(?i)\b(?:one|\d+) (?:row|record|entry|offset|connection|lease|statement|file|page|line)s? an? "
        r"(?:board|day|partition|topic|key|query|batch|process|pipeline|member|task|row|record|file)\b",
        "'one row per board'",
        PROSE,
    ),
)


@dataclass(frozen=True)
class Text:
    """A docstring, a line of a comment or of a document, or a name, and the line at which it begins."""

    file: str
    line: int
    kind: str
    text: str


def faults_of(text: Text) -> list[str]:
    """One line per violation: file:line, the words, the remedy."""
    return [
        f"{text.file}:{text.line + text.text.count(chr(10), 0, found.start())}: {text.kind}: "
        f"{' '.join(found[0].split())!r}: {rule.instead}"
        for rule in RULES
        if text.kind in rule.kinds
        for found in re.finditer(rule.pattern, text.text)
    ]


def texts_of(file: str, source: str) -> Iterator[Text]:
    """Docstrings, comments and names of code; lines of documents outside of code."""
    if file.endswith(".md"):
        yield from document_lines(file, source)
        return
    for number, line in enumerate(source.splitlines(), 1):
        if comment := re.search(r"(?:^|\s)(?:--|#) (.*)" if file.endswith(".sql") else r"(?:^\s*|  )# (.*)", line):
            yield Text(file, number, COMMENT, comment[1])
    if file.endswith(".py"):
        yield from docstrings_and_names(file, ast.parse(source))


def document_lines(file: str, source: str) -> Iterator[Text]:
    in_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield Text(file, number, DOCUMENT, line)


def docstrings_and_names(file: str, tree: ast.AST) -> Iterator[Text]:
    """A name comes once, with its first line."""
    names: dict[str, int] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if text := ast.get_docstring(node, clean=False):
                    yield Text(file, node.body[0].lineno, DOCSTRING, text)
                if not isinstance(node, ast.Module):
                    names.setdefault(node.name, node.lineno)
            case ast.arg():
                names.setdefault(node.arg, node.lineno)
            case ast.Name(ctx=ast.Store()):
                names.setdefault(node.id, node.lineno)
    yield from (Text(file, line, NAME, name) for name, line in names.items())


def files() -> list[str]:
    found = [*ROOT.glob("*.md"), *itertools.chain(*((ROOT / folder).rglob("*") for folder in FOLDERS))]
    names = (path.relative_to(ROOT).as_posix() for path in found if path.suffix in SUFFIXES)
    return sorted(name for name in names if not name.startswith(FROZEN))


def refuse(faults: list[str]) -> None:
    """Fail with one line per fault: pytest shortens a long list."""
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    return [text for file in files() for text in texts_of(file, (ROOT / file).read_text(encoding="utf-8"))]


def test_prose_and_names_keep_the_rules(texts):
    assert len(texts) > 10_000
    refuse([fault for text in texts for fault in faults_of(text)])


def test_code_of_any_pipeline_has_no_words_of_one(texts):
    """Quoted values, such as `3 late board`, are examples."""
    refuse(
        [
            f"{text.file}:{text.line}: {text.kind}: {found[0]!r}: 'record', 'row', 'key', 'table key', 'the table'"
            for text in texts
            if text.file.startswith(OF_ANY_PIPELINE) and text.file not in OF_THE_SITE
            for found in re.finditer(WORDS_OF_ONE_PIPELINE, re.sub(r"`.*?`|name: \w+", "", text.text))
        ]
    )


def test_lines_of_documents_are_short(texts):
    """Lines of tables and lines with a link have no way to be wrapped."""
    refuse(
        [
            f"{text.file}:{text.line}: {len(text.text)} characters: wrap at {WRAP_AT}"
            for text in texts
            if text.kind == DOCUMENT and len(text.text) > LONGEST and not re.match(r"\s*\||.*\]\(", text.text)
        ]
    )


@pytest.mark.parametrize(
    ("file", "source", "faults"),
    [
        ("a.py", '"""What a caller may rely on."""', ["a.py:1: docstring: 'What'"]),
        ("a.py", 'def f():\n    """Return what a caller asked for."""', []),
        ("a.py", '"""Docs.\n\nA value, or what is\nnone.\n"""', ["a.py:3: docstring: 'what is none'"]),
        ("a.py", "x = 1  # Where the time goes", ["a.py:1: comment: 'Where'"]),
        ("a.py", "# What if it is gone? Then it is made again.", []),
        ("a.py", "def f(patience_s): ...", ["a.py:1: name: 'patience'"]),
        ("a.py", "impatient = heartbeat = 1", []),
        ("a.sql", "SELECT 1 -- Who asks", ["a.sql:1: comment: 'Who'"]),
        ("a.md", "# What analysts cannot do\n\n- What they can do.", ["a.md:3: document: '- What'"]),
        ("a.md", "```\nWhat\n```\nWhat\n", ["a.md:4: document: 'What'"]),
        ("a.md", "The table has one row a board.", ["a.md:1: document: 'one row a board'"]),
    ],
)
def test_finds_each_kind_of_text(file, source, faults):
    found = [fault for text in texts_of(file, source) for fault in faults_of(text)]
    assert [fault.split("': ")[0] + "'" for fault in found] == faults
