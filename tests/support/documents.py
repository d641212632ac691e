"""Extracts commands and SQL from the documents, as an operator would type them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
ARCHITECTURE = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
GUIDES = [ROOT / "docs" / f"{name}.md" for name in ("commands", "gateway-api", "operators", "tutorial")]
DEPLOYMENT = sorted((ROOT / "docs" / "deployment").glob("*.md"))
OPERATED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES, *DEPLOYMENT, *ARCHITECTURE, *RUNBOOKS]

FENCED = re.compile(r"^[ \t]*```(\w+)\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:\.state/venv/bin/)?python[0-9.]* ((?:-m [\w.]+|[\w/]+\.py)\b.*)")
# wherever a text names one: in code, a message, a page, a comment of a table
PIPELINE = re.compile(
    r"\bpipeline ((?:gateway|days|database|kafka|archive|stream)\b(?: (?:\"[^\"\n]*\"|[^\s`\"'|;#&()])+)*)"
)
LIST = re.compile(r"\[\"?(pipeline\"?, [^\]\n]*)\]")
ROLE = re.compile(r"as role `(\w+)`[^\n]*\n\s*\Z", re.IGNORECASE)
SELECT = re.compile(r"SELECT .+ FROM .+")
STATEMENT = re.compile(r"\s*(?:--[^\n]*\n\s*)*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Sql:
    """Statements of one block, which are run one after the other, as that role."""

    document: str
    role: str
    statements: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}: {self.statements[0][:60]}"


def fenced(document: Path, *languages: str) -> list[tuple[str, str]]:
    """The blocks in one of the languages, each with the text before it."""
    text = document.read_text(encoding="utf-8")
    return [(text[: found.start()], found[2]) for found in FENCED.finditer(text) if found[1] in languages]


def inline(document: Path) -> list[str]:
    """Code in running text."""
    return INLINE.findall(FENCED.sub("", document.read_text(encoding="utf-8")))


def commands(document: Path) -> list[tuple[str, ...]]:
    """Commands of the project's own programs, each in words: `-m` and the module, or a path, and its arguments."""
    lines = [line for _, block in fenced(document, "sh") for line in block.replace("\\\n", " ").splitlines()]
    found = []
    for line in (*lines, *inline(document)):
        for part in re.split(r"\s#\s|&&|\||;", line):
            command = COMMAND.search(part.strip().rstrip("')"))
            if command:
                found.append(tuple(shlex.split(command[1])))
    return list(dict.fromkeys(found))


def pipeline_commands(text: str) -> list[tuple[str, ...]]:
    """The commands of `pipeline` that a text names, each in words; also those that are lists, as in a compose file."""
    text = LIST.sub(lambda found: re.sub(r"[\",\s]+", " ", found[1]), re.sub(r"\s*\\\n\s*", " ", text))
    return [tuple(shlex.split(found.rstrip(".,:"))) for found in PIPELINE.findall(text)]


def sql(document: Path, role: str) -> list[Sql]:
    """Return the SQL statements, each with its role: `role`, unless the line above says `as role …`."""
    found = []
    for before, block in fenced(document, "sql"):
        statements = tuple(one.strip() for one in block.split(";\n") if STATEMENT.match(one))
        named = ROLE.search(before)
        if statements:
            found.append(Sql(document.name, named[1] if named else role, statements))
    found += [Sql(document.name, role, (one,)) for one in inline(document) if SELECT.fullmatch(one)]
    return found
